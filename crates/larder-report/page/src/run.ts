// A run: the facts of one file, and its tables, which are unpacked when they are wanted.

import type { Facts, PieceFacts } from "./facts";
import { table } from "./packed";

export const NEVER = 0xffffffff;

/** Some allocations in the order in which they began, as columns. */
export interface Piece {
  count: number;
  begin: Float64Array;
  freed: Float64Array;
  end: Float64Array;
  size: Float64Array;
  asked: Float64Array;
  addr: Float64Array;
  lane: Float64Array;
  /** -1 where none was recorded. */
  stack: Float64Array;
  kind: Float64Array;
  beganAt: Float64Array;
  /** How many microseconds it lasted; -1 where that is not known. */
  lasted: Float64Array;
}

/** One allocation. */
export interface Band {
  begin: number;
  freed: number;
  end: number;
  size: number;
  asked: number;
  addr: number;
  lane: number;
  stack: number;
  kind: number;
  beganAt: number;
  lasted: number;
}

/** What was held of the device. */
export interface Stretch {
  begin: number;
  end: number;
  addr: number;
  size: number;
  lane: number;
  /** The number of its expandable segment from 1; 0 for a fixed one. */
  arena: number;
}

export interface Series {
  /** Allocated, active, reserved, free, largest free run: before each bucket, and the most in it. */
  before: Float64Array[];
  most: Float64Array[];
}

export function bandOf(piece: Piece, index: number): Band {
  return {
    begin: piece.begin[index],
    freed: piece.freed[index],
    end: piece.end[index],
    size: piece.size[index],
    asked: piece.asked[index],
    addr: piece.addr[index],
    lane: piece.lane[index],
    stack: piece.stack[index],
    kind: piece.kind[index],
    beganAt: piece.beganAt[index],
    lasted: piece.lasted[index],
  };
}

export class Run {
  private readonly pieces = new Map<string, Piece>();
  private readonly asked = new Map<string, Promise<Piece>>();
  private held?: Promise<Stretch[]>;
  series!: Series;
  stretches: Stretch[] = [];
  /** Counts up when something was unpacked. */
  version = 0;

  constructor(readonly facts: Facts, readonly prefix: string) {}

  async start(): Promise<void> {
    const columns = await table(`${this.prefix}-series`, this.facts.buckets);
    const all = () => {
      const column = columns.differences();
      for (let index = 0; index < column.length; index++) column[index] *= this.facts.unit;
      return column;
    };
    const before = [all(), all(), all(), all(), all()];
    const most = [all(), all(), all(), all(), all()];
    this.series = { before, most };
  }

  holdings(): Promise<Stretch[]> {
    this.held ??= this.readStretches();
    return this.held;
  }

  private async readStretches(): Promise<Stretch[]> {
    const count = this.facts.stretches;
    const columns = await table(`${this.prefix}-stretches`, count);
    const begin = columns.differences();
    const lasts = columns.column();
    const addr = columns.differences();
    const size = columns.column();
    const lane = columns.column();
    const arena = columns.column();
    const { unit } = this.facts;
    this.stretches = Array.from({ length: count }, (_, index) => ({
      begin: begin[index],
      end: lasts[index] === 0 ? NEVER : begin[index] + lasts[index] - 1,
      addr: addr[index] * unit,
      size: size[index] * unit,
      lane: lane[index],
      arena: arena[index],
    }));
    this.version += 1;
    return this.stretches;
  }

  /** The pieces with bands that last at least so long and reach into the window, by level. */
  wanted(from: number, to: number, lasts: number): PieceFacts[][] {
    const { levels } = this.facts;
    const isLong = (level: number) => level === 0 || levels[level - 1].lasts > lasts;
    const reaches = ([, , first, , end]: PieceFacts) => first <= to && end >= from;
    return levels
      .filter((_, level) => isLong(level))
      .map((level) => level.pieces.filter(reaches));
  }

  /** A piece, if it has been unpacked; if not, that is begun. */
  piece(facts: PieceFacts, then: () => void): Piece | undefined {
    const found = this.pieces.get(facts[0]);
    if (!found && !this.asked.has(facts[0])) void this.load(facts).then(then);
    return found;
  }

  load(facts: PieceFacts): Promise<Piece> {
    const [name, count] = facts;
    let promise = this.asked.get(name);
    if (!promise) {
      promise = this.read(name, count);
      this.asked.set(name, promise);
    }
    return promise;
  }

  private async read(name: string, count: number): Promise<Piece> {
    const columns = await table(name, count);
    const { unit } = this.facts;
    const begin = columns.differences();
    const freed = columns.column();
    const end = columns.column();
    const size = columns.column();
    const asked = columns.column();
    const addr = columns.differences();
    const lane = columns.column();
    const stack = columns.column();
    const kind = columns.column();
    const beganAt = columns.differences();
    const lasted = columns.column();
    for (let index = 0; index < count; index++) {
      freed[index] = freed[index] === 0 ? NEVER : begin[index] + freed[index] - 1;
      end[index] = end[index] === 0 ? NEVER : freed[index] + end[index] - 1;
      size[index] *= unit;
      asked[index] = size[index] - asked[index];
      addr[index] *= unit;
      stack[index] -= 1;
      lasted[index] -= 1;
    }
    const piece = { count, begin, freed, end, size, asked, addr, lane, stack, kind, beganAt, lasted };
    this.pieces.set(name, piece);
    this.version += 1;
    return piece;
  }

  /** All allocations that are active at a moment, in the order in which they began. */
  async activeAt(moment: number): Promise<Band[]> {
    const wanted = this.wanted(moment, moment, 0).flat();
    const pieces = await Promise.all(wanted.map((facts) => this.load(facts)));
    const bands: Band[] = [];
    for (const piece of pieces) {
      for (let index = 0; index < piece.count; index++) {
        if (piece.begin[index] > moment) break;
        if (piece.end[index] > moment) bands.push(bandOf(piece, index));
      }
    }
    return bands.sort((one, other) => one.begin - other.begin);
  }

  /** What happened at an event, in words that name what it was about. */
  async eventAt(event: number): Promise<{ what: string; band?: Band; stretch?: Stretch }> {
    const wanted = this.wanted(event, event, 0).flat();
    const pieces = await Promise.all(wanted.map((facts) => this.load(facts)));
    for (const piece of pieces) {
      for (let index = 0; index < piece.count && piece.begin[index] <= event; index++) {
        const band = () => bandOf(piece, index);
        if (piece.begin[index] === event) return { what: "allocated", band: band() };
        if (piece.freed[index] === event) return { what: "given back", band: band() };
        if (piece.end[index] === event) return { what: "free again", band: band() };
      }
    }
    const stretches = await this.holdings();
    const come = stretches.find((one) => one.begin === event);
    if (come) return { what: "memory from the device", stretch: come };
    const gone = stretches.find((one) => one.end === event);
    if (gone) return { what: "memory back to the device", stretch: gone };
    const failed = this.facts.failures.some(([at]) => at === event);
    return { what: failed ? "out of memory" : "nothing that shows" };
  }
}
