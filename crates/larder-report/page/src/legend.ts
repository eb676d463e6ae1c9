// The legend of the bands: what the colours of those that hold most at the peak stand for.

import { bandColours, colourNumber } from "./colours";
import { axisWords } from "./axes";
import type { Band } from "./run";
import type { State } from "./state";
import { element, made } from "./state";
import { bytes, stackName } from "./words";

const SHOWN = 8;

/** What a band is in the way that colours tell it, in words. */
function name(state: State, band: Band): string {
  const { facts } = state.side.run;
  const lane = facts.lanes[band.lane];
  switch (state.colourBy) {
    case "stack":
      return band.stack >= 0 ? stackName(facts, band.stack) : bytes(band.size);
    case "size":
      return bytes(band.size);
    case "stream":
      return `stream ${lane.stream}`;
    case "pool":
      return `pool ${lane.pool}`;
    case "category":
      return facts.kinds[band.kind];
  }
}

export async function showLegend(state: State): Promise<void> {
  const place = element("bands-legend");
  const show = async () => {
    const { run } = state.side;
    const { colourBy } = state;
    const active = await run.activeAt(run.facts.peaks.allocated.event);
    if (colourBy !== state.colourBy) return;
    const groups = new Map<string, { size: number; colour: number }>();
    for (const band of active) {
      const word = name(state, band);
      const group = groups.get(word) ?? { size: 0, colour: colourNumber(run.facts, colourBy, band) };
      group.size += band.size;
      groups.set(word, group);
    }
    const largest = [...groups].sort(([, one], [, other]) => other.size - one.size).slice(0, SHOWN);
    const { css } = bandColours();
    const parts = largest.map(([word, { size, colour }]) => {
      const part = made("span", "entry");
      const box = made("i", "box");
      box.style.background = css[colour];
      part.append(box, `${word} (${bytes(size)})`);
      return part;
    });
    const rest = groups.size - largest.length;
    const words = rest > 0 ? `and ${rest} more; point at a band to see what it is. ` : "";
    place.replaceChildren("at the peak: ", ...parts, made("span", "", `${words}${axisWords(run.facts)}`));
  };
  state.on(["side", "colour", "theme"], () => void show());
  await show();
}
