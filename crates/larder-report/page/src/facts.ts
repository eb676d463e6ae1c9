// What the page was told, as its maker wrote it down (facts.rs).

export interface Peak {
  bytes: number;
  event: number;
}

export interface Lane {
  stream: number;
  pool: string;
}

/** Event, lane, bytes asked for, bytes free, largest free run, number of free runs. */
export type Growth = [number, number, number, number, number, number];

/** Name, count, first and last event at which one begins, last event at which one ends. */
export type PieceFacts = [string, number, number, number, number];

/** What stands above all charts. */
export interface Verdict {
  kind: "failed" | "retried" | "calm";
  sentence: string;
  when: string;
  allowed: string;
  back: { bytes: number; size: string; how: string }[];
  advice: string;
  paste: string | null;
  open: string | null;
}

export interface Row {
  is_advised: boolean;
  standing: string | null;
  policy: string;
  conf: string;
  is_recorded: boolean;
  allocated: number;
  active: number;
  reserved: number;
  overhead: number;
  retries: number;
  ooms: number;
  driver: string;
  saved: number;
  paste: string | null;
  remark: string | null;
}

export interface Facts {
  name: string;
  policy: string;
  is_tight: boolean;
  is_stock: boolean;
  is_recording: boolean;
  settings: string;
  memory_bytes: number;
  memory: string;
  events: number;
  allocations: number;
  unit: number;
  peaks: { allocated: Peak; active: Peak; reserved: Peak };
  overhead: number;
  retries: number;
  ooms: number;
  first_oom: string | null;
  driver: string;
  bucket: number;
  buckets: number;
  lanes: Lane[];
  frames: [string, string, number][];
  stacks: number[][];
  kinds: string[];
  levels: { lasts: number; pieces: PieceFacts[] }[];
  stretches: number;
  arenas: [number, number, number][];
  growths: Growth[];
  failures: Growth[];
  compared: Row[];
  answer: string;
  verdict: Verdict | null;
  driver_remark: string;
}

export interface AllFacts {
  version: string;
  sides: Facts[];
}

export function readFacts(): AllFacts {
  return JSON.parse(document.getElementById("facts")!.textContent!) as AllFacts;
}
