// Layout: which bands a window of time shows, and how high each stands, column by column.
//
// The bands are stacked in the order in which they began. A column shows what is active at its middle, so a
// band that is narrower than a column may show or not; what is left between the stack and the line of active
// bytes is what was too short to show.

import type { Band, Piece, Run } from "./run";
import { bandOf } from "./run";
import type { View } from "./state";

/** More bands than this in a picture are left to the levels of longer ones. */
const BANDS_MAX = 300_000;

export interface Layout {
  view: View;
  columns: number;
  /** Piece and index of each band, in order. */
  pieces: Piece[];
  indexes: Uint32Array;
  first: Uint32Array;
  last: Uint32Array;
  count: number;
  /** Whether all pieces were there. */
  isWhole: boolean;
}

export function layOut(run: Run, view: View, columns: number, then: () => void): Layout {
  const width = (view.to - view.from) / columns;
  let wanted = run.wanted(view.from, view.to, width);
  const size = (levels: typeof wanted) => levels.flat().reduce((sum, [, count]) => sum + count, 0);
  while (wanted.length > 1 && size(wanted) > 4 * BANDS_MAX) wanted = wanted.slice(0, -1);
  let isWhole = true;
  const levels = wanted.map((facts) => {
    const pieces = facts.map((one) => run.piece(one, then));
    if (pieces.includes(undefined)) isWhole = false;
    return pieces.filter((piece) => piece !== undefined);
  });
  return { ...merged(levels, view, columns), view, columns, isWhole };
}

/** The bands of all levels in the order in which they began, those that no column shows left out. */
function merged(levels: Piece[][], view: View, columns: number) {
  const width = (view.to - view.from) / columns;
  const column = (event: number) => {
    const at = Math.ceil((event - view.from) / width - 0.5);
    return at < 0 ? 0 : at > columns ? columns : at;
  };
  const pieces: Piece[] = [];
  const room = Math.min(BANDS_MAX, levels.flat().reduce((sum, piece) => sum + piece.count, 0));
  const indexes = new Uint32Array(room);
  const first = new Uint32Array(room);
  const last = new Uint32Array(room);
  let count = 0;
  // Each level is in order; the next band is the earliest of their next ones.
  const heads = levels.map((list) => ({ list, piece: 0, index: 0, begin: Infinity }));
  const advance = (head: (typeof heads)[number]) => {
    for (; head.piece < head.list.length; head.piece++, head.index = 0) {
      const piece = head.list[head.piece];
      for (; head.index < piece.count; head.index++) {
        const begin = piece.begin[head.index];
        if (begin > view.to) break;
        if (piece.end[head.index] > view.from && column(begin) < column(piece.end[head.index])) {
          head.begin = begin;
          return;
        }
      }
    }
    head.begin = Infinity;
  };
  heads.forEach(advance);
  while (count < room) {
    let next = heads[0];
    for (const head of heads) if (head.begin < next.begin) next = head;
    if (!next || next.begin === Infinity) break;
    const piece = next.list[next.piece];
    pieces.push(piece);
    indexes[count] = next.index;
    first[count] = column(piece.begin[next.index]);
    last[count] = column(piece.end[next.index]);
    count += 1;
    next.index += 1;
    advance(next);
  }
  return { pieces, indexes, first, last, count };
}

/** Calls back for each column of each band with the bytes below and above. */
export function stacked(
  layout: Layout,
  each: (band: number, column: number, low: number, high: number) => boolean | void,
): Float64Array {
  const heights = new Float64Array(layout.columns);
  for (let band = 0; band < layout.count; band++) {
    const size = layout.pieces[band].size[layout.indexes[band]];
    const last = layout.last[band];
    for (let column = layout.first[band]; column < last; column++) {
      const low = heights[column];
      heights[column] = low + size;
      if (each(band, column, low, low + size)) return heights;
    }
  }
  return heights;
}

/** The band that stands at so many bytes in a column. */
export function bandAt(layout: Layout, column: number, height: number): number {
  let low = 0;
  for (let band = 0; band < layout.count; band++) {
    if (column < layout.first[band] || column >= layout.last[band]) continue;
    low += layout.pieces[band].size[layout.indexes[band]];
    if (height < low) return band;
  }
  return -1;
}

export function bandNumber(layout: Layout, band: number): Band {
  return bandOf(layout.pieces[band], layout.indexes[band]);
}
