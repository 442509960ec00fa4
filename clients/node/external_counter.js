'use strict';
// A program outside that is a task of a job, exactly once: it counts, and writes each number into a file once. The twin of
// examples/external_counter.py, which tells how it works.
//
//   node clients/node/external_counter.js --coordinator 127.0.0.1:6123 --job fleet --task orders --output out

const fs = require('node:fs');
const path = require('node:path');
const { parseArgs } = require('node:util');
const { FailedForGood, participate } = require('./snapline_external.js');

class Counter {
  constructor(output, until, pauseMs) {
    Object.assign(this, { output, until, pauseMs, next: 1, writtenUpTo: 0, snapshots: new Map() });
  }

  begin(context) {
    const [state, another] = context.state.get('counter') || [];
    if (another) throw new FailedForGood('this program holds one counter, and after the rescale it would be several: start more programs');
    ({ next: this.next, writtenUpTo: this.writtenUpTo } = state ? JSON.parse(state) : { next: 1, writtenUpTo: 0 });
    this.snapshots.clear();
    this.write(this.next - 1); // nobody knows whether that was done
    this.context = context;
    this.timer = setInterval(() => this.work(), this.pauseMs);
  }

  work() {
    if (this.next <= this.until) this.next += 1;
    else if (this.writtenUpTo === this.next - 1) {
      clearInterval(this.timer);
      this.context.finish();
    }
  }

  snapshot(checkpointId) {
    this.snapshots.set(checkpointId, this.next - 1);
    return { counter: [Buffer.from(JSON.stringify({ next: this.next, writtenUpTo: this.writtenUpTo }))] };
  }

  complete(checkpointId) {
    if (!this.snapshots.has(checkpointId)) return;
    this.write(this.snapshots.get(checkpointId));
    for (const each of [...this.snapshots.keys()]) if (each <= checkpointId) this.snapshots.delete(each);
  }

  aborted(checkpointId) {
    this.snapshots.delete(checkpointId);
  }

  end() {
    clearInterval(this.timer);
  }

  write(upTo) {
    if (upTo <= this.writtenUpTo) return;
    const numbers = Array.from({ length: upTo - this.writtenUpTo }, (_, index) => this.writtenUpTo + 1 + index);
    fs.mkdirSync(this.output, { recursive: true });
    const partial = path.join(this.output, '.partial');
    fs.writeFileSync(partial, numbers.map((number) => `${number}\n`).join(''));
    fs.renameSync(partial, path.join(this.output, String(numbers[0]).padStart(8, '0')));
    this.writtenUpTo = upTo;
  }
}

const text = (otherwise) => ({ type: 'string', ...(otherwise === undefined ? {} : { default: otherwise }) });
const { values } = parseArgs({
  options: { coordinator: text('127.0.0.1:6123'), job: text(), task: text('task'), output: text(), until: text('1000000'), pause: text('0.01') },
});
const counter = new Counter(values.output, Number(values.until), Number(values.pause) * 1000);
const where = { job: values.job, taskName: values.task, coordinator: values.coordinator, retryPauseMs: 100 };
participate(counter, where).then(console.log, (error) => {
  console.error(error.message);
  process.exitCode = 1;
});
