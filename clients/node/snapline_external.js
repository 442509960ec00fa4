'use strict';
// Programs outside as tasks of a Snapline job: the reference client for Node. It speaks protos/external.proto; docs/external.md of
// the project tells what the messages mean. It needs @grpc/grpc-js and @grpc/proto-loader.

const { EventEmitter } = require('node:events');
const fs = require('node:fs');
const os = require('node:os');
const path = require('node:path');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');
const protobuf = require('protobufjs'); // which proto-loader brings

const PROTOCOL_VERSION = 1;
const PROTO = [path.join(__dirname, 'external.proto'), path.join(__dirname, '..', '..', 'protos', 'external.proto')];
const OPTIONS = { longs: Number, enums: String, oneofs: true, defaults: true, keepCase: false };
const MAX_MESSAGE_BYTES = 256 << 20;
const EXCHANGE = '/arrow.flight.protocol.FlightService/DoExchange';
const LEADER = 'snapline-leader';
const REDISTRIBUTIONS = ['split', 'union', 'broadcast', 'by_key'];
// The same stream would end with these again: no or another token, one for something else, and a coordinator without external tasks.
const FOR_GOOD = [grpc.status.UNAUTHENTICATED, grpc.status.PERMISSION_DENIED, grpc.status.UNIMPLEMENTED];
const KEEPALIVE = { 'grpc.keepalive_time_ms': 20_000, 'grpc.keepalive_timeout_ms': 20_000 };
const UNREGISTERED_MS = 60_000; // so long a TaskManager may say nothing to a program that registers there
const LONGEST_TIMER_MS = 2 ** 31 - 1;

class ParticipationRefused extends Error {}
class CheckpointDeclined extends Error {}
class FailedForGood extends Error {}

/** The bytes as they are. What is none would be sent as other bytes, or as no bytes at all, without an error. */
function requireBytes(given, what) {
  if (Object.prototype.toString.call(given) === '[object Uint8Array]') return given;
  const found = given === null ? 'null' : Array.isArray(given) ? 'an array' : typeof given === 'object' ? 'an object' : `a ${typeof given}`;
  throw new FailedForGood(`${what} is ${found}, and has to be bytes: give a Buffer or a Uint8Array, such as Buffer.from(text)`);
}

/** One stream, from its registration to its end. Resolves with what the coordinator said last. */
class Conversation {
  constructor(task, call, register, log) {
    this.task = task;
    this.call = call;
    this.log = log;
    this.attempt = '';
    this.wasLetIn = false;
    this.last = {};
    this.silenceMs = register.ticket ? UNREGISTERED_MS : 0; // 0: a coordinator may take its time; what is gone answers no ping
    // Messages are handled one after the other: a task may answer any of them later.
    this.handled = Promise.resolve();
    call.write({ register });
  }

  run() {
    return new Promise((resolve) => {
      let silence;
      const end = (why, leader, code) => {
        clearTimeout(silence);
        this.handled = this.handled.then(async () => {
          if (this.attempt) await this.end(why);
          resolve({ why, leader, code, wasLetIn: this.wasLetIn, ...this.last });
        });
      };
      const listen = () => {
        clearTimeout(silence);
        if (this.silenceMs) silence = setTimeout(() => {
          end(`nothing was heard for ${this.silenceMs} ms`);
          this.call.cancel();
        }, Math.min(this.silenceMs, LONGEST_TIMER_MS));
      };
      listen();
      this.call.on('data', (message) => {
        if (message.registered) this.silenceMs = message.registered.heartbeatTimeoutMs;
        listen();
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
    // What is put out waits here while nobody takes it: then the next message is handled later, and a source is told to wait.
    if (this.call.writable && !this.call.write(message)) this.drained = this.drained || new Promise((resolve) => {
      const go = () => {
        this.drained = undefined;
        resolve();
      };
      this.call.once('drain', go);
      this.call.once('close', go);
      this.call.once('error', go);
    });
  }

  emit(attemptId, arrow) {
    requireBytes(arrow, 'what is emitted');
    if (this.attempt === attemptId) this.say({ rows: { attemptId, arrow } });
    return this.drained;
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
        this.call.end(); // a TaskManager waits for the program to leave
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
        if (said.attemptId === this.attempt) await this.complete(said);
        break;
      case 'notifyCheckpointAborted':
        if (said.attemptId === this.attempt) await this.tried(() => this.task.aborted(said.checkpointId));
        break;
      case 'rows':
      case 'watermark':
      case 'endOfInput':
        if (said.attemptId === this.attempt) await this.input(kind, said);
        break;
      default: // of a later version
    }
  }

  async runTask(run) {
    const attemptId = (this.attempt = run.attemptId);
    this.hasRows = run.shape !== 'TASK_SHAPE_ALONE';
    const shape = run.shape.replace('TASK_SHAPE_', '').toLowerCase();
    const state = new Map(run.state.map((each) => [each.name, each.elements]));
    const uploaded = new Map(run.state.map((each) => [each.name, each.uploaded]));
    const keyGroups = new Map(run.state.map((each) => [each.name, each.keyGroups]));
    const finish = () => {
      if (this.attempt !== attemptId) return;
      if (shape === 'source') {
        this.say({ endOfInput: { attemptId } }); // it still answers checkpoints
        return;
      }
      this.attempt = '';
      this.say({ taskFinished: { attemptId } });
    };
    const fail = (error) => this.fail(error, attemptId);
    const emit = (arrow) => this.emit(attemptId, arrow);
    const context = { ...run, shape, state, uploaded, keyGroups, emit, finish, fail };
    if (await this.tried(() => this.task.begin(context))) this.say({ taskRunning: { attemptId } });
  }

  /** What comes in, in order: all that follows from it is put out before the answer. */
  async input(kind, said) {
    const { attemptId } = said;
    const { task } = this;
    const taken = await this.tried(() => {
      if (kind === 'rows') return task.process({ arrow: said.arrow, keyGroups: said.keyGroups });
      if (kind === 'watermark') return said.isIdle || !task.watermark ? undefined : task.watermark(said.timestampMs);
      return task.endInput ? task.endInput() : undefined;
    });
    if (!taken) return;
    const { isIdle, exactMs } = said;
    if (kind === 'rows') this.say({ rowsProcessed: { attemptId, number: said.number } });
    else this.say(kind === 'watermark' ? { watermark: { attemptId, timestampMs: exactMs, isIdle } } : { endOfInput: { attemptId } });
    await this.drained;
  }

  /** The attempt is over, also when the task cannot end it: the program goes on. */
  async end(reason) {
    this.attempt = '';
    try {
      await this.task.end(reason);
    } catch (error) {
      this.log(`the end of the task failed: ${(error && error.stack) || error}`);
    }
  }

  async cancel({ attemptId, reason }) {
    await this.end(reason);
    this.say({ taskCanceled: { attemptId } });
  }

  async complete({ attemptId, checkpointId }) {
    const done = await this.tried(() => this.task.complete(checkpointId));
    if (done && this.hasRows) this.say({ notificationHandled: { attemptId, checkpointId } });
  }

  async snapshot({ attemptId, checkpointId, uploadLocation }) {
    try {
      const taken = Object.entries(await this.task.snapshot(checkpointId, uploadLocation));
      const state = taken.map(([name, given]) => {
        if (!Array.isArray(given)) throw new FailedForGood(`state '${name}' has to be an array of elements`);
        const isUploaded = (each) => each && each.file !== undefined;
        const uploaded = given.filter(isUploaded);
        const elements = given.filter((each) => !isUploaded(each));
        const redistribution = (this.task.redistribution || {})[name] || 'split';
        if (!REDISTRIBUTIONS.includes(redistribution)) {
          throw new FailedForGood(`state '${name}' has the redistribution '${redistribution}': choose from ${REDISTRIBUTIONS.join(', ')}`);
        }
        const byKey = redistribution === 'by_key';
        return {
          name,
          elements: elements.map((each) => requireBytes(byKey && each ? each[1] : each, `an element of state '${name}'`)),
          keyGroups: byKey ? elements.map(([group]) => group) : [],
          uploaded,
          redistribution: `REDISTRIBUTION_${redistribution.toUpperCase()}`,
        };
      });
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
    const details = (error && error.stack) || '';
    this.say({ taskFailed: { attemptId, reason: String(error), details, isFinal: error instanceof FailedForGood } });
    await this.end(`it failed: ${error}`);
  }
}

/** The same conversation with a TaskManager, within a stream of Arrow Flight: looks like the stream of ExternalTasks. */
class FlightStream extends EventEmitter {
  constructor(client, method, { FlightFrame, FromProgram, ToProgram, Exact }, ticket) {
    super();
    this.types = { FlightFrame, FromProgram };
    const metadata = new grpc.Metadata();
    metadata.set('authorization', `Ticket ${ticket}`);
    const encode = (frame) => Buffer.from(FlightFrame.serialize(frame));
    const decode = (data) => {
      const bytes = Buffer.from(FlightFrame.deserialize(data).appMetadata);
      const message = ToProgram.deserialize(bytes);
      // A watermark is said back as it is, and beyond 2^53 a Number is another one.
      if (message.watermark) message.watermark.exactMs = Exact.decode(bytes).watermark.timestampMs;
      return message;
    };
    this.call = client.makeBidiStreamRequest(method, encode, decode, metadata, {});
    this.call.write({ flightDescriptor: { type: 2, cmd: Buffer.from('snapline.external/1') } });
    for (const event of ['data', 'error', 'drain', 'close']) this.call.on(event, (...given) => this.emit(event, ...given));
    this.call.on('end', () => {
      this.call.end();
      this.emit('end');
    });
  }

  get writable() {
    return this.call.writable;
  }

  write(message) {
    return this.call.write({ appMetadata: this.types.FromProgram.serialize(message) });
  }

  end() {
    this.call.end();
  }

  cancel() {
    this.call.cancel();
  }
}

function credentialsOf({ ca, key, certificate }) {
  if (!ca) return grpc.credentials.createInsecure();
  return grpc.credentials.createSsl(fs.readFileSync(ca), fs.readFileSync(key), fs.readFileSync(certificate));
}

/** Take part until the job is over; resolves with the coordinator's last word. */
async function participate(task, { job, taskName, coordinator, program = '', token = '', tls = {}, retryPauseMs = 1000, log = console.warn }) {
  const proto = PROTO.find((file) => fs.existsSync(file));
  const definition = protoLoader.loadSync(proto, OPTIONS);
  const { ExternalTasks } = grpc.loadPackageDefinition(definition).snapline.external.v1;
  const { requestSerialize, responseDeserialize } = definition['snapline.external.v1.ExternalTasks'].Participate;
  const [FlightFrame, Exact] = ['FlightFrame', 'ToProgram'].map((name) => protobuf.loadSync(proto).lookupType(`snapline.external.v1.${name}`));
  const types = {
    FlightFrame: { serialize: (frame) => FlightFrame.encode(frame).finish(), deserialize: (data) => FlightFrame.decode(data) },
    FromProgram: { serialize: requestSerialize },
    ToProgram: { deserialize: responseDeserialize },
    Exact,
  };
  let credentials = credentialsOf(tls);
  const limits = { 'grpc.max_receive_message_length': MAX_MESSAGE_BYTES, 'grpc.max_send_message_length': MAX_MESSAGE_BYTES };
  const metadata = new grpc.Metadata();
  if (token) metadata.set('snapline-token', token);
  const addresses = coordinator.split(',').map((each) => each.trim());
  const register = { protocolVersion: PROTOCOL_VERSION, job, task: taskName, program, host: os.hostname(), pid: process.pid };
  for (let turn = 0, address = addresses[0], ticket = ''; ; ) {
    const name = ticket && tls.exchangeHostname ? { 'grpc.ssl_target_name_override': tls.exchangeHostname } : {};
    try {
      credentials = credentialsOf(tls); // as they are by now: a program lives longer than certificates do
    } catch (error) {
      log(`the certificates cannot be read now, those before stay in use: ${error.message}`); // somebody is in the middle of changing them
    }
    // Arrow's server ends a stream at the fourth ping, and a TaskManager has a heartbeat.
    const client = new ExternalTasks(address, credentials, { ...limits, ...name, ...(ticket ? {} : KEEPALIVE) });
    const call = ticket ? new FlightStream(client, EXCHANGE, types, ticket) : client.participate(metadata);
    const ended = await new Conversation(task, call, { ...register, ticket }, log).run();
    client.close();
    const { rejected } = ended;
    ticket = (rejected && rejected.ticket) || '';
    if (ticket) {
      address = rejected.address;
      continue;
    }
    if (rejected && rejected.reason === 'REJECTION_REASON_JOB_IS_OVER') return rejected.detail;
    if (rejected && !rejected.tryAgain) throw new ParticipationRefused(rejected.detail);
    if (FOR_GOOD.includes(ended.code)) throw new ParticipationRefused(`${address} refuses the stream: ${ended.why}`);
    if (ended.wasLetIn) log(`the stream ended, registering again: ${ended.why}`);
    else turn += 1;
    address = (rejected && rejected.address) || ended.leader || addresses[turn % addresses.length];
    await new Promise((resolve) => setTimeout(resolve, retryPauseMs));
  }
}

module.exports = { participate, CheckpointDeclined, FailedForGood, ParticipationRefused, PROTOCOL_VERSION };
