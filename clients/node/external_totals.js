'use strict';
// A program outside that is an operator of a job, exactly once: it answers each row (key, number) with its key's total so far. It is the
// operator of examples/external_rows.py in Node.
//
//   node clients/node/external_totals.js --coordinator 127.0.0.1:6123 --job JOB --task totals
//
// Rows are Arrow IPC streams; this program reads and writes them with apache-arrow.

const { parseArgs } = require('node:util');
const { tableFromArrays, tableFromIPC, tableToIPC } = require('apache-arrow');
const { participate } = require('./snapline_external.js');

class Totals {
  redistribution = { totals: 'by_key' }; // the total of a key goes where its rows go

  begin({ state, keyGroups, emit }) {
    const groups = keyGroups.get('totals') || [];
    this.emit = emit;
    this.totals = new Map();
    (state.get('totals') || []).forEach((element, index) => {
      const [key, total] = JSON.parse(element);
      this.totals.set(key, [groups[index], BigInt(total)]);
    });
  }

  process({ arrow, keyGroups }) {
    const rows = tableFromIPC(arrow);
    const [keys, numbers] = ['key', 'number'].map((name) => rows.getChild(name).toArray());
    const totals = new BigInt64Array(rows.numRows);
    keys.forEach((key, index) => {
      const [group, before] = this.totals.get(String(key)) || [keyGroups[index], 0n];
      totals[index] = before + numbers[index];
      this.totals.set(String(key), [group, totals[index]]);
    });
    const answer = tableFromArrays({ key: keys, number: numbers, total: totals });
    return this.emit(tableToIPC(answer, 'stream'));
  }

  snapshot() {
    const elements = [...this.totals].map(([key, [group, total]]) => [group, Buffer.from(JSON.stringify([key, String(total)]))]);
    return { totals: elements };
  }

  complete() {}

  aborted() {}

  end() {}
}

const text = (otherwise) => ({ type: 'string', ...(otherwise === undefined ? {} : { default: otherwise }) });
const { values } = parseArgs({ options: { coordinator: text('127.0.0.1:6123'), job: text(), task: text('totals') } });
participate(new Totals(), { job: values.job, taskName: values.task, coordinator: values.coordinator, retryPauseMs: 100 }).then(
  console.log,
  (error) => {
    console.error(error.message);
    process.exitCode = 1;
  },
);
