// Segments: what is held at a moment, cut into live, waiting and free parts, with what is unmapped.

import type { Band, Run } from "./run";

export type What = "live" | "waiting" | "free" | "unmapped";

export interface Part {
  what: What;
  addr: number;
  size: number;
  band?: Band;
}

export interface Segment {
  addr: number;
  /** With what is unmapped in it. */
  size: number;
  lane: number;
  isExpandable: boolean;
  parts: Part[];
  live: number;
  waiting: number;
  free: number;
  unmapped: number;
}

/** A free run, and what lies at its sides. */
export interface FreeRun {
  segment: Segment;
  addr: number;
  size: number;
  pins: Band[];
}

/** The segments at a moment, by lane and address; and the bands that lie in none, since they are in views. */
export async function segmentsAt(run: Run, moment: number): Promise<{ segments: Segment[]; elsewhere: Band[] }> {
  const [stretches, bands] = await Promise.all([run.holdings(), run.activeAt(moment)]);
  const held = stretches.filter((one) => one.begin <= moment && moment < one.end);
  held.sort((one, other) => one.addr - other.addr);
  const byAddress = [...bands].sort((one, other) => one.addr - other.addr);
  const segments: Segment[] = [];
  const byArena = new Map<number, Segment>();
  let next = 0;
  const elsewhere: Band[] = [];
  for (const stretch of held) {
    let segment = stretch.arena > 0 ? byArena.get(stretch.arena) : undefined;
    if (!segment) {
      const [addr, , lane] = stretch.arena > 0 ? run.facts.arenas[stretch.arena - 1] : [stretch.addr, 0, stretch.lane];
      segment = { addr, size: 0, lane, isExpandable: stretch.arena > 0, parts: [], live: 0, waiting: 0, free: 0, unmapped: 0 };
      segments.push(segment);
      if (stretch.arena > 0) byArena.set(stretch.arena, segment);
    }
    const end = segment.addr + segment.size;
    if (stretch.addr > end) push(segment, "unmapped", end, stretch.addr - end);
    let at = stretch.addr;
    const stop = stretch.addr + stretch.size;
    while (next < byAddress.length && byAddress[next].addr < at) elsewhere.push(byAddress[next++]);
    while (next < byAddress.length && byAddress[next].addr < stop) {
      const band = byAddress[next++];
      if (band.addr > at) push(segment, "free", at, band.addr - at);
      push(segment, band.freed > moment ? "live" : "waiting", band.addr, band.size, band);
      at = band.addr + band.size;
      // A block may reach over two stretches of one expandable segment.
      if (at > stop) {
        stretchOn(held, stretch.arena, stop, at);
      }
    }
    if (at < stop) push(segment, "free", at, stop - at);
  }
  elsewhere.push(...byAddress.slice(next));
  for (const segment of segments) if (segment.isExpandable) unmappedTail(run, segment);
  return { segments, elsewhere };
}

/** What a block has taken of the stretch behind is not free there. */
function stretchOn(held: { arena: number; addr: number; size: number }[], arena: number, from: number, to: number): void {
  for (let index = 0; index < held.length; index++) {
    const one = held[index];
    if (one.arena !== arena || one.addr < from || one.addr >= to) continue;
    const cut = Math.min(one.size, to - one.addr);
    held[index] = { ...one, addr: one.addr + cut, size: one.size - cut };
  }
}

function unmappedTail(run: Run, segment: Segment): void {
  const arena = run.facts.arenas.find(([addr, , lane]) => addr === segment.addr && lane === segment.lane);
  const end = segment.addr + segment.size;
  if (arena && arena[1] > end) push(segment, "unmapped", end, arena[1] - end);
}

function push(segment: Segment, what: What, addr: number, size: number, band?: Band): void {
  const last = segment.parts[segment.parts.length - 1];
  if (!band && last?.what === what && !last.band) last.size += size;
  else segment.parts.push({ what, addr, size, band });
  segment.size += size;
  segment[what] += size;
}

/** The free runs with the active blocks at their sides, the largest first. */
export function freeRuns(segments: Segment[]): FreeRun[] {
  const runs: FreeRun[] = [];
  for (const segment of segments) {
    segment.parts.forEach((part, index) => {
      if (part.what !== "free") return;
      const sides = [segment.parts[index - 1], segment.parts[index + 1]];
      const pins = sides.flatMap((side) => (side?.band ? [side.band] : []));
      runs.push({ segment, addr: part.addr, size: part.size, pins });
    });
  }
  return runs.sort((one, other) => other.size - one.size || one.addr - other.addr);
}
