// Types of snapline_external.js. Methods may be async; the next message is handled when the promise has settled.

/** What an attempt begins with. */
export interface TaskContext {
  attemptId: string;
  subtaskIndex: number;
  parallelism: number;
  attemptNumber: number;
  jobId: string;
  jobName: string;
  task: string;
  /** The checkpoint that the state is of; 0: there is none. */
  restoredCheckpointId: number;
  /** The elements of each state, by its name. */
  state: Map<string, Buffer[]>;
  /** Those that were uploaded instead of sent; `file` is the whole path or URL. */
  uploaded: Map<string, Uploaded[]>;
  /** The key group of each element of a state that is redistributed `by_key`, by the state's name. */
  keyGroups: Map<string, number[]>;
  configuration: Record<string, string>;
  /** `alone`: a task without rows. */
  shape: 'alone' | 'source' | 'operator' | 'sink';
  /** Arrow IPC streams without batches: the columns of the rows that come and go. */
  inputSchema: Buffer;
  outputSchema: Buffer;
  /** Put rows out: an Arrow IPC stream of one batch. The promise settles when more may be put out. */
  emit(arrow: Uint8Array): Promise<void> | undefined;
  /** Say that the task has done all that it ever had to: a source has no more rows. */
  finish(): void;
  /** Say that the attempt cannot go on; the job's restart strategy decides what follows. */
  fail(error: Error): void;
}

/** A batch of rows that came in. */
export interface Rows {
  /** An Arrow IPC stream of one batch; `tableFromIPC` of apache-arrow reads it. */
  arrow: Buffer;
  /** The key group of each row, where the input is keyed. */
  keyGroups: number[];
}

/** An element of a state that lies in a file below the upload location, where `snapshot` has put it. */
export interface Uploaded {
  file: string;
  offset: number;
  size: number;
  /** The SHA-256 of each MiB, one after the other. */
  digests?: Uint8Array;
}

/** An element of a state; with its key group where the state is redistributed `by_key`. */
export type Element = Uint8Array | [number, Uint8Array] | Uploaded;

/** One task of a job. */
export interface ExternalTask {
  /** What becomes of the elements of a state when the number of tasks changes; `split` where nothing is said. */
  redistribution?: Record<string, 'split' | 'union' | 'broadcast' | 'by_key'>;
  /** Begin an attempt with this state, whatever was before. */
  begin(context: TaskContext): void | Promise<void>;
  /** The state as it is now: elements by the name of a state. What is not to be sent goes into files below
   * `uploadLocation`, a directory or URL of this checkpoint alone. May throw CheckpointDeclined. */
  snapshot(checkpointId: number, uploadLocation: string): Record<string, Element[]> | Promise<Record<string, Element[]>>;
  /** In a task with rows: take a batch, and emit all that follows from it before the promise settles. */
  process?(rows: Rows): void | Promise<void>;
  /** No row with an earlier event time will come. */
  watermark?(timestampMs: number): void | Promise<void>;
  /** No row will come; emit what is left. Checkpoints may follow. */
  endInput?(): void | Promise<void>;
  /** The checkpoint is durable: make visible what it covers. May be called twice, or only for a later one. */
  complete(checkpointId: number): void | Promise<void>;
  /** The checkpoint will never be durable. */
  aborted(checkpointId: number): void | Promise<void>;
  /** The attempt is over. Another one may begin. */
  end(reason: string): void | Promise<void>;
}

export interface Participation {
  /** Id or name of the job. */
  job: string;
  /** Name of the external task. */
  taskName: string;
  /** host:port; several, separated by commas, where several coordinators stand by. */
  coordinator: string;
  /** What people call this program. */
  program?: string;
  /** The cluster's security.auth.token. */
  token?: string;
  /** Files, as the settings security.ssl.* name them. */
  tls?: { ca?: string; key?: string; certificate?: string; exchangeHostname?: string };
  retryPauseMs?: number;
  log?: (line: string) => void;
}

/** Thrown by `snapshot`: the task cannot take part in this checkpoint, which is aborted for all. */
export class CheckpointDeclined extends Error {}

/** Thrown by a method, or given to `fail`: it would fail again, so the job fails instead of being restarted. */
export class FailedForGood extends Error {}

/** The coordinator does not let the program take part, and will not. */
export class ParticipationRefused extends Error {}

export const PROTOCOL_VERSION: number;

/** Take part until the job is over; resolves with the coordinator's last word. */
export function participate(task: ExternalTask, participation: Participation): Promise<string>;
