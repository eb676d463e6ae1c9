// Holders: who held the memory at a moment, as a flame graph and as a table; and against another moment.

import { Flame } from "./flame";
import type { Band, Run } from "./run";
import type { State } from "./state";
import { element, made } from "./state";
import { bytes, change, number, stackName, frame } from "./words";

const ROWS = 200;

/** One line of the table: all that is alike. */
interface Holder {
  key: string;
  stack: string;
  /** All frames as text, which is what a search looks through. */
  whole: string;
  size: number;
  stream: number;
  pool: string;
  category: string;
  count: number;
  bytes: number;
  countBefore: number;
  bytesBefore: number;
  since: number;
}

type Column = "bytes" | "count" | "size" | "stack" | "stream" | "pool" | "category" | "since" | "before" | "change";

const COLUMNS: [Column, string][] = [
  ["bytes", "bytes"],
  ["before", "bytes there"],
  ["change", "difference"],
  ["count", "blocks"],
  ["size", "size of one"],
  ["stack", "stack"],
  ["stream", "stream"],
  ["pool", "pool"],
  ["category", "category"],
  ["since", "oldest since event"],
];

export class Holders {
  private holders: Holder[] = [];
  private sorted: Column = "bytes";
  private isUp = false;
  private shown = ROWS;
  private turn = 0;
  private readonly flame: Flame;
  private readonly at = element<HTMLSelectElement>("holders-at");
  private readonly against = element<HTMLSelectElement>("holders-against");

  constructor(private readonly state: State) {
    this.flame = new Flame(element("flame"));
    this.fillChoices();
    this.at.addEventListener("change", () => void this.show());
    this.against.addEventListener("change", () => void this.show());
    const search = element<HTMLInputElement>("search");
    search.addEventListener("input", () => {
      this.shown = ROWS;
      this.fillTable();
      this.flame.search(search.value.trim().toLowerCase());
    });
    element("pin").addEventListener("click", () => {
      const side = state.side;
      side.pinned = side.moment;
      this.at.value = `${state.current}:moment`;
      this.against.value = `${state.current}:pinned`;
      void this.show();
    });
    state.on(["moment"], () => {
      if (`${this.at.value}${this.against.value}`.includes("moment")) void this.show();
    });
    state.on(["side"], () => {
      this.at.value = `${state.current}:allocated`;
      void this.show();
    });
  }

  private fillChoices(): void {
    const { sides } = this.state;
    this.against.append(new Option("nothing", ""));
    sides.forEach(({ run }, number) => {
      const file = sides.length > 1 ? `${run.facts.name}: ` : "";
      const choices: [string, string][] = [
        ["allocated", "the peak"],
        ["reserved", "the peak of reserved"],
        ["moment", "the chosen moment"],
        ["pinned", "the kept moment"],
        ["end", "the end"],
      ];
      if (run.facts.failures.length > 0) choices.push(["failure", "the first failure"]);
      for (const [value, word] of choices) {
        this.at.append(new Option(`${file}${word}`, `${number}:${value}`));
        this.against.append(new Option(`${file}${word}`, `${number}:${value}`));
      }
    });
    // All views begin at the same moment.
    if (sides[0].run.facts.failures.length > 0) this.at.value = "0:failure";
    if (sides.length > 1) this.against.value = "1:allocated";
  }

  private moment(value: string): { run: Run; moment: number } | undefined {
    if (!value) return undefined;
    const [side, where] = value.split(":");
    const { run, moment, pinned } = this.state.sides[Number(side)];
    const { peaks, events, failures } = run.facts;
    const places: Record<string, number> = {
      allocated: peaks.allocated.event,
      reserved: peaks.reserved.event,
      moment,
      pinned: pinned ?? moment,
      end: events - 1,
      failure: failures[0]?.[0] ?? events - 1,
    };
    return { run, moment: places[where] };
  }

  async show(): Promise<void> {
    const turn = ++this.turn;
    const here = this.moment(this.at.value)!;
    const there = this.moment(this.against.value);
    const [now, before] = await Promise.all([here.run.activeAt(here.moment), there?.run.activeAt(there.moment)]);
    if (turn !== this.turn) return;
    const holders = new Map<string, Holder>();
    gather(holders, here.run, now, false);
    if (there && before) gather(holders, there.run, before, true);
    this.holders = [...holders.values()];
    this.shown = ROWS;
    this.fillTable();
    const total = now.reduce((sum, band) => sum + band.size, 0);
    const sums = element("holders-sums");
    sums.dataset.bytes = String(total);
    const then = before?.reduce((sum, band) => sum + band.size, 0);
    const words = then === undefined ? "" : `; against ${bytes(then)} in ${number(before!.length)} at event ${number(there!.moment)}${there!.run === here.run ? "" : ` of ${there!.run.facts.name}`}: ${change(total - then)}`;
    sums.textContent = `${bytes(total)} in ${number(now.length)} blocks at event ${number(here.moment)}${words}`;
    this.flame.show(here.run.facts, now);
  }

  private visible(): Holder[] {
    const search = element<HTMLInputElement>("search").value.trim().toLowerCase();
    const found = search ? this.holders.filter((holder) => holder.whole.includes(search)) : [...this.holders];
    const value = (holder: Holder): number | string => {
      if (this.sorted === "before") return holder.bytesBefore;
      if (this.sorted === "change") return holder.bytes - holder.bytesBefore;
      return holder[this.sorted];
    };
    const sign = this.isUp ? 1 : -1;
    return found.sort((one, other) => {
      const [a, b] = [value(one), value(other)];
      const order = typeof a === "number" ? a - (b as number) : String(a).localeCompare(String(b), "en", { numeric: true });
      return sign * order || other.bytes - one.bytes;
    });
  }

  private fillTable(): void {
    const isCompared = this.against.value !== "";
    const columns = COLUMNS.filter(([column]) => isCompared || (column !== "before" && column !== "change"));
    const head = made("tr");
    for (const [column, word] of columns) {
      const cell = made("th");
      const button = made("button", "", word);
      const direction = this.isUp ? "ascending" : "descending";
      cell.setAttribute("aria-sort", column === this.sorted ? direction : "none");
      button.addEventListener("click", () => {
        this.isUp = column === this.sorted ? !this.isUp : false;
        this.sorted = column;
        this.fillTable();
      });
      cell.append(button);
      head.append(cell);
    }
    const visible = this.visible();
    const rows = visible.slice(0, this.shown).map((holder) => this.row(holder, columns));
    const table = element("holders");
    const caption = made("caption", "", `${number(visible.length)} of ${number(this.holders.length)} groups`);
    table.replaceChildren(caption, head, ...rows);
    const more = element("holders-more");
    more.hidden = visible.length <= this.shown;
    more.onclick = () => {
      this.shown += 1000;
      this.fillTable();
    };
  }

  private row(holder: Holder, columns: [Column, string][]): HTMLElement {
    const row = made("tr");
    for (const [column] of columns) {
      const difference = holder.bytes - holder.bytesBefore;
      const texts: Record<Column, string> = {
        bytes: bytes(holder.bytes),
        before: bytes(holder.bytesBefore),
        change: change(difference),
        count: number(holder.count),
        size: bytes(holder.size),
        stack: holder.stack,
        stream: String(holder.stream),
        pool: holder.pool,
        category: holder.category,
        since: holder.since === Infinity ? "" : number(holder.since),
      };
      const cell = made("td", column === "stack" ? "code" : "", texts[column]);
      if (column === "bytes") cell.dataset.bytes = String(holder.bytes);
      if (column === "change" && difference !== 0) cell.classList.add(difference > 0 ? "more" : "less");
      row.append(cell);
    }
    row.title = holder.whole;
    return row;
  }
}

function gather(holders: Map<string, Holder>, run: Run, bands: Band[], isBefore: boolean): void {
  const { facts } = run;
  const texts = new Map<number, string>();
  const text = (stack: number) => {
    let found = texts.get(stack);
    if (found === undefined) {
      found = stack < 0 ? "" : facts.stacks[stack].map((at) => frame(facts, at)).join("\n");
      texts.set(stack, found);
    }
    return found;
  };
  for (const band of bands) {
    const { stream, pool } = facts.lanes[band.lane];
    const category = facts.kinds[band.kind];
    const whole = text(band.stack);
    const key = `${whole}|${band.size}|${stream}|${pool}|${category}`;
    let holder = holders.get(key);
    if (!holder) {
      const stack = stackName(facts, band.stack);
      const searched = `${whole}\n${stack} ${bytes(band.size)} stream ${stream} ${pool} ${category}`.toLowerCase();
      holder = { key, stack, whole: searched, size: band.size, stream, pool, category, count: 0, bytes: 0, countBefore: 0, bytesBefore: 0, since: Infinity };
      holders.set(key, holder);
    }
    if (isBefore) {
      holder.countBefore += 1;
      holder.bytesBefore += band.size;
    } else {
      holder.count += 1;
      holder.bytes += band.size;
      holder.since = Math.min(holder.since, band.begin);
    }
  }
}
