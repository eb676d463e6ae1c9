// Numbers and names as people read them.

import type { Facts } from "./facts";

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

/** A number of bytes, as the command line prints it. */
export function bytes(count: number): string {
  const sign = count < 0 ? "−" : "";
  let value = Math.abs(count);
  if (value < 1024) return `${sign}${value} ${value === 1 ? "byte" : "bytes"}`;
  let unit = 0;
  while (value >= 1024 && unit + 1 < UNITS.length) {
    value /= 1024;
    unit += 1;
  }
  return `${sign}${value.toFixed(2)} ${UNITS[unit]}`;
}

const GROUPED = new Intl.NumberFormat("en");

export function number(count: number): string {
  return GROUPED.format(count);
}

export function plural(count: number, noun: string): string {
  return `${number(count)} ${noun}${count === 1 ? "" : "s"}`;
}

/** A signed number of bytes: what came or went. */
export function change(count: number): string {
  if (count === 0) return "0";
  return count > 0 ? `+${bytes(count)}` : bytes(count);
}

export function duration(microseconds: number): string {
  if (microseconds < 1000) return `${microseconds} µs`;
  if (microseconds < 1e6) return `${(microseconds / 1e3).toFixed(1)} ms`;
  return `${(microseconds / 1e6).toFixed(2)} s`;
}

export function address(addr: number): string {
  return `0x${addr.toString(16)}`;
}

/** A frame in a line. */
export function frame(facts: Facts, at: number): string {
  const [name, file, line] = facts.frames[at];
  return file ? `${name} ${file}${line ? `:${line}` : ""}` : name;
}

/** The name and the place of a frame, short. */
export function shortFrame(facts: Facts, at: number): string {
  const [name, file, line] = facts.frames[at];
  const place = file.split("/").pop() ?? "";
  return place && place !== "??" ? `${name} (${place}${line ? `:${line}` : ""})` : name;
}

const INNER = /^(c10::|at::|torch::|void at::|_|CUDACachingAllocator|PyEval|PyObject|operator|std::|clone$)/;
const OUTSIDE = /site-packages|dist-packages|\/torch\/|<frozen|\?\?/;

/** The frame of a stack that says most: the innermost of the program's own, or else of Python. */
export function tellingFrame(facts: Facts, stack: number): number {
  const frames = facts.stacks[stack];
  const isPython = (at: number) => facts.frames[at][1].endsWith(".py");
  const own = frames.find((at) => isPython(at) && !OUTSIDE.test(facts.frames[at][1]));
  const python = frames.find(isPython);
  const named = frames.find((at) => !INNER.test(facts.frames[at][0]));
  return own ?? python ?? named ?? frames[0];
}

/** The frame that says most of a stack, and the innermost one that a person would know. */
export function stackName(facts: Facts, stack: number): string {
  if (stack < 0) return "no stack recorded";
  const telling = tellingFrame(facts, stack);
  const python = facts.stacks[stack].find((at) => facts.frames[at][1].endsWith(".py"));
  const name = shortFrame(facts, telling);
  return python === undefined || python === telling ? name : `${name} › ${shortFrame(facts, python)}`;
}
