// Colours: those of the styles, and one for each thing that is told apart.

import type { Facts } from "./facts";
import type { Piece } from "./run";
import type { ColourBy } from "./state";

const HUES = [211, 28, 142, 352, 262, 48, 184, 322, 96, 12, 236, 164];

export interface Inks {
  allocated: string;
  active: string;
  reserved: string;
  ink: string;
  faint: string;
  grid: string;
  paper: string;
  accent: string;
  warn: string;
  live: string;
  free: string;
  waiting: string;
  unmapped: string;
  isDark: boolean;
}

let known: Inks | undefined;

export function inks(): Inks {
  if (known) return known;
  const style = getComputedStyle(document.documentElement);
  const named = (name: string) => style.getPropertyValue(`--${name}`).trim();
  known = {
    allocated: named("allocated"),
    active: named("active"),
    reserved: named("reserved"),
    ink: named("ink"),
    faint: named("faint"),
    grid: named("grid"),
    paper: named("paper"),
    accent: named("accent"),
    warn: named("warn"),
    live: named("live"),
    free: named("free"),
    waiting: named("waiting"),
    unmapped: named("unmapped"),
    isDark: named("is-dark") === "1",
  };
  return known;
}

export function forget(): void {
  known = undefined;
  palette = undefined;
}

function rgb(hue: number, saturation: number, lightness: number): [number, number, number] {
  const part = (at: number) => {
    const k = (at + hue / 30) % 12;
    const amount = saturation * Math.min(lightness, 1 - lightness);
    return Math.round(255 * (lightness - amount * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [part(0), part(8), part(4)];
}

/** As a canvas's bytes have it. */
const packed = ([red, green, blue]: [number, number, number]) =>
  ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;

/** For each colour the plain one, that of an edge, and that of what waits. */
export interface Palette {
  plain: Uint32Array;
  edge: Uint32Array;
  waiting: Uint32Array;
  css: string[];
}

let palette: Palette | undefined;

export function bandColours(): Palette {
  if (palette) return palette;
  const { isDark } = inks();
  const count = HUES.length * 3;
  const made = { plain: new Uint32Array(count), edge: new Uint32Array(count), waiting: new Uint32Array(count), css: [] as string[] };
  for (let index = 0; index < count; index++) {
    const hue = HUES[index % HUES.length];
    const shade = Math.floor(index / HUES.length) * 0.075;
    const light = isDark ? 0.4 + shade : 0.72 - shade;
    const saturation = isDark ? 0.42 : 0.55;
    const plain = rgb(hue, saturation, light);
    made.plain[index] = packed(plain);
    made.edge[index] = packed(rgb(hue, saturation, isDark ? light - 0.14 : light - 0.16));
    made.waiting[index] = packed(rgb(hue, 0.15, isDark ? 0.24 : 0.88));
    made.css.push(`rgb(${plain.join(" ")})`);
  }
  palette = made;
  return made;
}

/** A number below the number of colours that spreads well. */
export function spread(key: number): number {
  let hash = Math.imul((key % 4294967296) ^ Math.floor(key / 4294967296), 2654435761) >>> 0;
  hash = (hash ^ (hash >>> 15)) >>> 0;
  return hash % (HUES.length * 3);
}

/** Which colour a band of a piece has. */
export function colourOf(facts: Facts, by: ColourBy): (piece: Piece, index: number) => number {
  switch (by) {
    case "stack":
      // Where no stacks were recorded, sizes tell at least something apart.
      if (facts.stacks.length === 0) return colourOf(facts, "size");
      return (piece, index) => spread(piece.stack[index] + 7);
    case "size":
      return (piece, index) => spread(piece.size[index]);
    case "stream":
      return (piece, index) => facts.lanes[piece.lane[index]].stream % HUES.length;
    case "pool": {
      const pools = [...new Set(facts.lanes.map((lane) => lane.pool))];
      const numbers = facts.lanes.map((lane) => pools.indexOf(lane.pool) % HUES.length);
      return (piece, index) => numbers[piece.lane[index]];
    }
    case "category":
      return (piece, index) => piece.kind[index] % HUES.length;
  }
}
