'use strict';
// Programs outside as tasks of a Snapline job: the reference client for Node. It speaks protos/external.proto; docs/external.md of
// the project tells what the messages mean. It needs @grpc/grpc-js and @grpc/proto-loader.

const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');

const PROTOCOL_VERSION = 1;
const PROTO = [path.join(__dirname, 'external.proto'), path.join(__dirname, '..', '..', 'protos', 'external.proto')];
const OPTIONS = { longs: Number, enums: String, oneofs: true, defaults: true, keepCase: false };
const MAX_MESSAGE_BYTES = 256 << 20;
const LEADER = 'snapline-leader';
// The same stream would end with these again: no or another token, and a coordinator without external tasks.
const FOR_GOOD = [grpc.status.UNAUTHENTICATED, grpc.status.UNIMPLEMENTED];

class ParticipationRefused extends Error {}
class CheckpointDeclined extends Error {}

/** One stream, from its registration to its end. Resolves with what the coordinator said last. */
class Conversation {
  constructor(task, call, register, log) {
    this.task = task;
    this.call = call;
    this.log = log;
    this.attempt = '';
    this.wasLetIn = false;
    this.last = {};
    // Messages are handled one after the other: a task may answer any of them later.
    this.handled = Promise.resolve();
    call.write({ register });
  }

  run() {
    return new Promise((resolve) => {
      const end = (why, leader, code) => {
        this.handled = this.handled.then(async () => {
          if (this.attempt) {
            this.attempt = '';
            await this.task.end(why);
          }
          resolve({ why, leader, code, wasLetIn: this.wasLetIn, ...this.last });
        });
      };
      this.call.on('data', (message) => {
        // Heartbeats are answered by whoever has the thread: a task that blocks it is taken for dead.
        if (message.message === 'heartbeat') this.say({ heartbeat: {} });
        else this.handled = this.handled.then(() => this.handle(message.message, message[message.message]));
      });
      this.call.on('error', (error) => {
        end(error.message, error.metadata && String(error.metadata.get(LEADER)[0] || ''), error.code);
      });
      this.call.on('end', () => end('the coordinator closed the stream', ''));
    });
  }

  say(message) {
    if (this.call.writable) this.call.write(message);
  }

  async handle(kind, said) {
    switch (kind) {
      case 'registered':
        this.wasLetIn = true;
        break;
      case 'rejected':
        this.last = { rejected: said };
        break;
      case 'goodbye':
        this.last = { goodbye: said };
        break;
      case 'complaint':
        this.log(`the coordinator complains: ${said.detail}`);
        break;
      case 'runTask':
        await this.runTask(said);
        break;
      case 'cancelTask':
        if (said.attemptId === this.attempt) await this.cancel(said);
        break;
      case 'triggerCheckpoint':
        if (said.attemptId === this.attempt) await this.snapshot(said);
        break;
      case 'notifyCheckpointComplete':
        if (said.attemptId === this.attempt) await this.tried(() => this.task.complete(said.checkpointId));
        break;
      case 'notifyCheckpointAborted':
        if (said.attemptId === this.attempt) await this.tried(() => this.task.aborted(said.checkpointId));
        break;
      default: // of a later version
    }
  }

  async runTask(run) {
    const attemptId = (this.attempt = run.attemptId);
    const state = new Map(run.state.map((each) => [each.name, each.elements]));
    const finish = () => {
      if (this.attempt !== attemptId) return;
      this.attempt = '';
      this.say({ taskFinished: { attemptId } });
    };
    const fail = (error) => this.fail(error, attemptId);
    if (await this.tried(() => this.task.begin({ ...run, state, finish, fail }))) this.say({ taskRunning: { attemptId } });
  }

  async cancel({ attemptId, reason }) {
    this.attempt = '';
    await this.task.end(reason);
    this.say({ taskCanceled: { attemptId } });
  }

  async snapshot({ attemptId, checkpointId }) {
    try {
      const taken = Object.entries(await this.task.snapshot(checkpointId));
      const state = taken.map(([name, elements]) => ({
        name,
        elements,
        redistribution: `REDISTRIBUTION_${((this.task.redistribution || {})[name] || 'split').toUpperCase()}`,
      }));
      this.say({ acknowledgeCheckpoint: { attemptId, checkpointId, state } });
    } catch (error) {
      if (error instanceof CheckpointDeclined) {
        this.say({ declineCheckpoint: { attemptId, checkpointId, reason: error.message } });
      } else {
        await this.fail(error, attemptId);
      }
    }
  }

  /** Whether the task did it; what it throws ends the attempt. */
  async tried(action) {
    const attemptId = this.attempt;
    try {
      await action();
      return this.attempt === attemptId;
    } catch (error) {
      await this.fail(error, attemptId);
      return false;
    }
  }

  async fail(error, attemptId) {
    if (this.attempt !== attemptId) return;
    this.attempt = '';
    this.say({ taskFailed: { attemptId, reason: String(error), details: error.stack || '' } });
    await this.task.end(`it failed: ${error}`);
  }
}

function credentialsOf({ ca, key, certificate }) {
  if (!ca) return grpc.credentials.createInsecure();
  return grpc.credentials.createSsl(fs.readFileSync(ca), fs.readFileSync(key), fs.readFileSync(certificate));
}

/** Take part until the job is over; resolves with the coordinator's last word. */
async function participate(task, { job, taskName, coordinator, program = '', token = '', tls = {}, retryPauseMs = 1000, log = console.warn }) {
  const definition = protoLoader.loadSync(PROTO.find((file) => fs.existsSync(file)), OPTIONS);
  const { ExternalTasks } = grpc.loadPackageDefinition(definition).snapline.external.v1;
  const credentials = credentialsOf(tls);
  const limits = { 'grpc.max_receive_message_length': MAX_MESSAGE_BYTES, 'grpc.max_send_message_length': MAX_MESSAGE_BYTES };
  const metadata = new grpc.Metadata();
  if (token) metadata.set('snapline-token', token);
  const addresses = coordinator.split(',').map((each) => each.trim());
  const register = { protocolVersion: PROTOCOL_VERSION, job, task: taskName, program, host: os.hostname(), pid: process.pid };
  for (let turn = 0, address = addresses[0]; ; ) {
    const client = new ExternalTasks(address, credentials, limits);
    const ended = await new Conversation(task, client.participate(metadata), register, log).run();
    client.close();
    const { rejected } = ended;
    if (rejected && rejected.reason === 'REJECTION_REASON_JOB_IS_OVER') return rejected.detail;
    if (rejected && !rejected.tryAgain) throw new ParticipationRefused(rejected.detail);
    if (FOR_GOOD.includes(ended.code)) throw new ParticipationRefused(`${address} refuses the stream: ${ended.why}`);
    if (ended.wasLetIn) log(`the stream ended, registering again: ${ended.why}`);
    else turn += 1;
    address = (rejected && rejected.address) || ended.leader || addresses[turn % addresses.length];
    await new Promise((resolve) => setTimeout(resolve, retryPauseMs));
  }
}

module.exports = { participate, CheckpointDeclined, ParticipationRefused, PROTOCOL_VERSION };
