// The verdict: what is wrong in one sentence, what could be had back and how, and what to set.

import type { Facts, Verdict } from "./facts";
import { paste } from "./paste";
import type { State } from "./state";
import { element, made } from "./state";

export function showVerdicts(state: State): void {
  const all = state.sides.map(({ run: { facts } }) => facts);
  const boxes = all.flatMap((facts) => (facts.verdict ? [box(facts, facts.verdict, all.length > 1)] : []));
  element("verdicts").replaceChildren(...boxes);
}

function box(facts: Facts, verdict: Verdict, isNamed: boolean): HTMLElement {
  const box = made("section", `verdict ${verdict.kind}`);
  box.setAttribute("aria-label", `verdict on ${facts.name}`);
  if (isNamed) box.append(made("p", "faint", facts.name));
  box.append(made("p", "sentence", verdict.sentence));
  if (verdict.back.length > 0) {
    box.append(made("p", "faint", `Held and free ${verdict.when}, of ${verdict.allowed} that it may have:`));
    const list = made("ul");
    for (const { size, how } of verdict.back) {
      const line = made("li");
      line.append(made("b", "", size), ` ${how}`);
      list.append(line);
    }
    box.append(list);
  }
  if (verdict.open) box.append(made("p", "faint", verdict.open));
  box.append(made("p", "", verdict.advice));
  if (verdict.paste) box.append(paste(verdict.paste, "p"));
  return box;
}
