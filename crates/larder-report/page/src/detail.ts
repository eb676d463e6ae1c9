// Detail: what there is to say of one allocation.

import type { Facts } from "./facts";
import type { Band } from "./run";
import { NEVER } from "./run";
import { made } from "./state";
import { address, bytes, duration, frame, number, plural, shortFrame, tellingFrame } from "./words";

function lifetime(facts: Facts, band: Band): string {
  const begin = `event ${number(band.begin)}`;
  const isKept = band.freed === NEVER;
  const end = isKept ? "the end" : `event ${number(band.freed)}`;
  const events = (isKept ? facts.events : band.freed) - band.begin;
  const time = band.lasted >= 0 ? `, ${duration(band.lasted)}` : "";
  return `${begin} to ${end} (${plural(events, "event")}${time})`;
}

function waits(band: Band): string {
  if (band.freed === NEVER || band.end === band.freed + 1) return "";
  const end = band.end === NEVER ? "the end" : `event ${number(band.end)}`;
  return `from event ${number(band.freed)} to ${end}, for another stream`;
}

/** The lines of a band: what, and how it is. */
export function lines(facts: Facts, band: Band): [string, string][] {
  const { stream, pool } = facts.lanes[band.lane];
  const size = band.asked === band.size ? "" : `, of which ${number(band.asked)} bytes were asked for`;
  const all: [string, string][] = [
    ["size", `${bytes(band.size)}${size}`],
    ["stream", String(stream)],
    ["pool", pool],
    ["category", facts.kinds[band.kind]],
    ["lifetime", lifetime(facts, band)],
  ];
  const waiting = waits(band);
  if (waiting) all.push(["waited", waiting]);
  all.push(["address", address(band.addr)]);
  return all;
}

/** The short words beside the pointer. */
export function tip(facts: Facts, band: Band): HTMLElement {
  const box = made("div");
  box.append(made("strong", "", bytes(band.size)));
  const { stream, pool } = facts.lanes[band.lane];
  box.append(made("div", "", `stream ${stream}, ${pool} pool, ${facts.kinds[band.kind]}`));
  box.append(made("div", "", lifetime(facts, band)));
  if (band.stack >= 0) {
    box.append(made("div", "code", shortFrame(facts, tellingFrame(facts, band.stack))));
    const inner = facts.stacks[band.stack][0];
    if (inner !== tellingFrame(facts, band.stack)) {
      box.append(made("div", "code faint", shortFrame(facts, inner)));
    }
  }
  return box;
}

/** All of it, for the panel that stays. */
export function panel(facts: Facts, band: Band): HTMLElement {
  const box = made("div");
  const list = made("dl");
  for (const [what, how] of lines(facts, band)) {
    list.append(made("dt", "", what), made("dd", "", how));
  }
  box.append(list);
  if (band.stack < 0) {
    box.append(made("p", "faint", "No call stack was recorded: torch.cuda.memory._record_memory_history() keeps them unless it is told not to."));
    return box;
  }
  const stack = made("ol", "stack");
  for (const at of facts.stacks[band.stack]) stack.append(made("li", "code", frame(facts, at)));
  box.append(made("h3", "", "Call stack, innermost first"), stack);
  return box;
}
