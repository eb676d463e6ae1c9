// Reads the tables of numbers that the page was given: columns in base 128, deflated, as base64.

export class Columns {
  private at = 0;

  constructor(private readonly bytes: Uint8Array, private readonly count: number) {}

  column(): Float64Array {
    const numbers = new Float64Array(this.count);
    for (let index = 0; index < this.count; index++) numbers[index] = this.next();
    return numbers;
  }

  /** Numbers that are told by how far each is from the one before, zigzag. */
  differences(): Float64Array {
    const numbers = new Float64Array(this.count);
    let before = 0;
    for (let index = 0; index < this.count; index++) {
      const step = this.next();
      before += step % 2 === 0 ? step / 2 : -(step + 1) / 2;
      numbers[index] = before;
    }
    return numbers;
  }

  private next(): number {
    const { bytes } = this;
    let byte = bytes[this.at++];
    let number = byte & 127;
    for (let scale = 128; byte & 128; scale *= 128) {
      byte = bytes[this.at++];
      number += (byte & 127) * scale;
    }
    return number;
  }
}

const pause = () => new Promise<void>((resolve) => setTimeout(resolve, 5));

/** The table of this name. It may stand further down in the page than the browser has read. */
export async function table(name: string, count: number): Promise<Columns> {
  let element = document.getElementById(name);
  while (!element && document.readyState === "loading") {
    await pause();
    element = document.getElementById(name);
  }
  if (!element) throw new Error(`the page has no table ${name}`);
  return new Columns(await inflate(decode(element.textContent ?? "")), count);
}

function decode(text: string): Uint8Array<ArrayBuffer> {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let index = 0; index < raw.length; index++) bytes[index] = raw.charCodeAt(index);
  return bytes;
}

async function inflate(bytes: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
