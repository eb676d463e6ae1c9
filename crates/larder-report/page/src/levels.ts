// Levels: allocated, active, reserved, free and largest free run in each column of a window.

import type { Run } from "./run";
import { NEVER } from "./run";
import type { View } from "./state";

/** For each column the most of allocated, active, reserved, free; and the least of the largest free run. */
export type ColumnLevels = Float64Array[];

export function levels(run: Run, view: View, columns: number, then: () => void): ColumnLevels {
  const width = (view.to - view.from) / columns;
  const { bucket } = run.facts;
  const exact = width < bucket && bucket > 1 ? exactLevels(run, view, then) : undefined;
  return exact ? sampled(exact.values, exact.from, 1, view, columns) : bucketed(run, view, columns);
}

function bucketed(run: Run, view: View, columns: number): ColumnLevels {
  return sampled(run.series.most, 0, run.facts.bucket, view, columns);
}

/** The most of each series over each column. */
function sampled(
  series: Float64Array[],
  origin: number,
  each: number,
  view: View,
  columns: number,
): ColumnLevels {
  const width = (view.to - view.from) / columns;
  return series.map((values, which) => {
    const found = new Float64Array(columns);
    for (let column = 0; column < columns; column++) {
      const start = (view.from + column * width - origin) / each;
      const from = Math.max(0, Math.min(values.length - 1, Math.floor(start)));
      const to = Math.max(from + 1, Math.min(values.length, Math.floor(start + width / each)));
      let best = values[from];
      for (let at = from + 1; at < to; at++) {
        const value = values[at];
        if (which === 4 ? value < best : value > best) best = value;
      }
      found[column] = best;
    }
    return found;
  });
}

interface Exact {
  from: number;
  values: Float64Array[];
}

/** The value after each event of the window, put together from all that begins and ends in it. */
function exactLevels(run: Run, view: View, then: () => void): Exact | undefined {
  const { bucket, events } = run.facts;
  const first = Math.floor(view.from / bucket);
  const from = first * bucket;
  const count = Math.min(events, Math.ceil(view.to) + 1) - from;
  const pieces = run.wanted(from, view.to, 0).flat().map((facts) => run.piece(facts, then));
  if (run.stretches.length === 0 && run.facts.stretches > 0) {
    void run.holdings().then(then);
    return undefined;
  }
  if (pieces.includes(undefined) || count <= 0) return undefined;
  const values = [0, 1, 2].map(() => new Float64Array(count));
  const add = (series: number, event: number, size: number) => {
    const at = event - from;
    if (at >= 0 && at < count) values[series][at] += size;
  };
  for (const piece of pieces) {
    if (!piece) continue;
    for (let index = 0; index < piece.count && piece.begin[index] <= view.to + 1; index++) {
      if (piece.end[index] < from) continue;
      const size = piece.size[index];
      add(0, piece.begin[index], size);
      add(1, piece.begin[index], size);
      add(0, piece.freed[index], -size);
      add(1, piece.end[index], -size);
    }
  }
  for (const stretch of run.stretches) {
    add(2, stretch.begin, stretch.size);
    if (stretch.end !== NEVER) add(2, stretch.end, -stretch.size);
  }
  values.forEach((series, which) => {
    let sum = run.series.before[which][first] ?? 0;
    for (let at = 0; at < count; at++) {
      sum += series[at];
      series[at] = sum;
    }
  });
  const free = values[2].map((reserved, at) => reserved - values[1][at]);
  const largest = new Float64Array(count);
  for (let at = 0; at < count; at++) {
    const bucketAt = Math.min(run.facts.buckets - 1, Math.floor((from + at) / bucket));
    largest[at] = run.series.most[4][bucketAt];
  }
  return { from, values: [...values, free, largest] };
}
