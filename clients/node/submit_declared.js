'use strict';
// Submits a declared job to a Snapline coordinator and waits for its end: no Python, and nothing pickled. The file is protobuf's JSON
// of DeclaredJob (protos/declared.proto); docs/declared.md tells what it may say. It needs @grpc/grpc-js and @grpc/proto-loader.
//
//   node clients/node/submit_declared.js --coordinator 127.0.0.1:6123 --job job.json
//
// The exit code is 0 when the job has FINISHED, 1 for a job that is refused or ends otherwise.

const fs = require('node:fs');
const path = require('node:path');
const { parseArgs } = require('node:util');
const grpc = require('@grpc/grpc-js');
const protoLoader = require('@grpc/proto-loader');
const protobuf = require('protobufjs'); // which proto-loader brings

const ROOT = path.join(__dirname, '..', '..'); // snapline/protos, by which the files import each other, lies there
const OPTIONS = { longs: Number, enums: String, oneofs: true, defaults: true, keepCase: false, includeDirs: [ROOT] };

/** The type of a declared job. */
function declaredJob() {
  const root = new protobuf.Root();
  root.resolvePath = (_, target) => path.join(ROOT, target);
  root.loadSync('snapline/protos/declared.proto').resolveAll();
  return root.lookupType('snapline.v1.DeclaredJob');
}

/** The message by the names that proto-loader knows. It leaves out fields and values that it does not know, without an error. */
function checked(given, type) {
  if (given === null || typeof given !== 'object' || Array.isArray(given)) throw new Error(`${type.name} has to be an object`);
  const said = Object.entries(given).filter(([, value]) => value !== null);
  return Object.fromEntries(said.map(([key, value]) => {
    const field = type.fields[protobuf.util.camelCase(key)];
    if (!field) throw new Error(`${type.name} has no field '${key}'; there are ${Object.keys(type.fields).join(', ')}`);
    const { resolvedType } = field;
    const one = (each) => {
      if (resolvedType instanceof protobuf.Type) return checked(each, resolvedType);
      if (resolvedType && !(each in resolvedType.values) && !(each in resolvedType.valuesById)) {
        throw new Error(`${type.name}.${field.name} is '${each}'; there are ${Object.keys(resolvedType.values).join(', ')}`);
      }
      return each;
    };
    if (field.repeated && !Array.isArray(value)) throw new Error(`${type.name}.${field.name} has to be an array`);
    if (field.map) return [field.name, Object.fromEntries(Object.entries(value).map(([name, each]) => [name, one(each)]))];
    return [field.name, field.repeated ? value.map(one) : one(value)];
  }));
}

async function submit(address, job, token, log) {
  const { snapline } = grpc.loadPackageDefinition(protoLoader.loadSync('snapline/protos/client.proto', OPTIONS));
  const client = new snapline.v1.ClientService(address, grpc.credentials.createInsecure());
  const metadata = new grpc.Metadata();
  if (token) metadata.set('snapline-token', token);
  try {
    const { jobId } = await new Promise((resolve, reject) => {
      client.SubmitDeclaredJob({ job }, metadata, (error, answer) => (error ? reject(error) : resolve(answer)));
    });
    log(jobId);
    let last;
    for await (const details of client.WatchJob({ jobId }, metadata)) last = details.overview;
    return last;
  } finally {
    client.close();
  }
}

const text = (otherwise) => ({ type: 'string', ...(otherwise === undefined ? {} : { default: otherwise }) });
const { values } = parseArgs({ options: { coordinator: text('127.0.0.1:6123'), job: text() } });
const read = () => checked(JSON.parse(fs.readFileSync(values.job)), declaredJob());
Promise.resolve().then(read).then((job) => submit(values.coordinator, job, process.env.SNAPLINE_TOKEN, console.log)).then(
  (overview) => {
    const failed = overview.status !== 'JOB_STATUS_FINISHED';
    console.log(failed && overview.failure ? `${overview.status}: ${overview.failure.summary}` : overview.status);
    process.exitCode = failed ? 1 : 0;
  },
  (error) => {
    console.error(error.details || error.message);
    process.exitCode = 1;
  },
);
