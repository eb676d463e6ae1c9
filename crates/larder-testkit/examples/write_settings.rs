//! Writes random settings texts for the comparison with PyTorch's own parsers: right ones, nearly
//! right ones, and rubbish.
//!
//! ```text
//! write_settings FROM COUNT
//! ```
//!
//! Each line is the seed of its case, a tabulator, and `start` or `update` with a text: that with
//! which a program starts, and those that it sets then. The same seed always writes the same texts.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let [from, count] = numbers[..] else {
        eprintln!("usage: write_settings FROM COUNT");
        return ExitCode::from(2);
    };
    let seeds = (0..).map(|at| from.wrapping_add(at));
    let lines = seeds.flat_map(|seed| {
        let case = Writer::new(seed).case();
        case.into_iter().map(move |line| format!("{seed}\t{line}\n"))
    });
    let text: String = lines.take(usize::try_from(count).unwrap_or(usize::MAX)).collect();
    print!("{text}");
    ExitCode::SUCCESS
}

/// Every key of PyTorch's, known to all versions or to some.
const KEYS: &str = "backend large_segment_size_mb max_split_size_mb max_non_split_rounding_mb \
     garbage_collection_threshold roundup_power2_divisions expandable_segments \
     expandable_segments_reserve expandable_segments_reserve_by_class \
     release_lock_on_cudamalloc release_lock_on_hipmalloc graph_capture_record_stream_reuse \
     per_process_memory_fraction throw_on_cudamalloc_oom pinned_use_cuda_host_register \
     pinned_use_hip_host_register pinned_num_register_threads pinned_use_background_threads \
     pinned_reserve_segment_size_mb pinned_free_catch_all pinned_max_round_threshold_mb \
     pinned_max_cached_size_mb";

/// Words that are no key, or none as they are written.
const STRANGERS: [&str; 8] = [
    "no_such_key",
    "Expandable_Segments",
    "max_split_size",
    "pinned_use_background_thread",
    "max_split_size_mb=40",
    "PYTORCH_ALLOC_CONF=max_split_size_mb",
    "é",
    "0",
];

const SIZES: &str = "0 1 2 9 10 11 19 20 21 32 40 64 100 512 1024 32768 65536 2147483647 \
     2147483648 4294967296 8796093022208 17592186044414 17592186044415 \
     17592186044416 17592186044417 9223372036854775808 18446744073709551615 \
     18446744073709551616 99999999999999999999 -1 -20 -18446744073709551595 \
     -18446744073709551616 +5 +40 007 00040 1e3 40.9 0x40 40MB --40";

const FRACTIONS: &str = "0.5 0.8 .5 1. 1 0 0.0 -0 -0.0 1.0 1.0000000000000000001 \
     0.99999999999999999999 1.1 -0.5 +0.25 5e-1 5E-1 0.5e 0.5e+ 0.05e+1 \
     1e-300 1e-310 1e-400 1e400 0e999 0x1p-1 0x.8 0X.4P1z 0x 0x1.8p-1074 \
     0x1p-1075 0x0.123456789abcdef0123456789p-2 nan NAN(7) inf -infinity \
     0.5.5 0,5 half 50%";

const RESERVES: &str = "0.5 1.125 2 40G 40g 1.5G .5G 2.G 1e1G 1e 1e400 1e-320 0 0G -1G +3G G \
     GG 4GG 0x4G infG 40M";

const MARKS: [&str; 16] =
    [",", ":", "[", "]", " ", "\t", "\r", "\x0b", "=", ";", ",,", "::", ">", "\u{a0}", "\x01", "."];

/// Writes texts, always the same ones for a seed.
struct Writer {
    random: Random,
}

impl Writer {
    fn new(seed: u64) -> Self {
        Self { random: Random::new(seed) }
    }

    /// The lines of a case: the text with which a program starts, mostly a right one, and those
    /// that it sets then.
    fn case(&mut self) -> Vec<String> {
        let start = if self.random.one_in(3) { String::new() } else { self.text() };
        let count = self.below(5);
        let updates = (0..count).map(|_| format!("update {}", self.text()));
        let mut lines = vec![format!("start {start}")];
        lines.extend(updates);
        lines
    }

    fn text(&mut self) -> String {
        if self.random.one_in(12) {
            return self.rubbish();
        }
        let count = [0, 1, 1, 1, 2, 2, 3, 4, 6][self.below(9)];
        let mut entries: Vec<String> = (0..count).map(|_| self.entry()).collect();
        if self.random.one_in(8) && !entries.is_empty() {
            let again = entries[self.below(entries.len())].clone();
            entries.push(again);
        }
        let mut text = entries.join(",");
        if self.random.one_in(10) {
            text.push(',');
        }
        if self.random.one_in(5) {
            self.blemish(&mut text);
        }
        if self.random.one_in(6) {
            self.sprinkle(&mut text);
        }
        text
    }

    fn entry(&mut self) -> String {
        let key = self.key();
        let value = if self.random.one_in(15) { self.any_value() } else { self.value(key) };
        format!("{key}:{value}")
    }

    fn key(&mut self) -> &'static str {
        if self.random.one_in(40) { self.one_of(&STRANGERS) } else { self.word_of(KEYS) }
    }

    /// A value of the kind that a key takes, right or not.
    fn value(&mut self, key: &str) -> String {
        match key {
            "backend" => {
                self.one_of(&["native", "native", "native", "cudaMallocAsync", "x"]).into()
            }
            "roundup_power2_divisions" => self.divisions(),
            "expandable_segments_reserve" => self.word_of(RESERVES).into(),
            "expandable_segments_reserve_by_class" => self.classes(),
            "garbage_collection_threshold" | "per_process_memory_fraction" => self.fraction(),
            "pinned_num_register_threads" => self.power(140),
            key if key.ends_with("_mb") => self.size(),
            _ => self.boolean(),
        }
    }

    fn any_value(&mut self) -> String {
        match self.below(8) {
            0 => self.boolean(),
            1 => self.size(),
            2 => self.fraction(),
            3 => self.divisions(),
            4 => self.classes(),
            5 => self.word_of(RESERVES).into(),
            6 => self.word_of(KEYS).into(),
            _ => String::new(),
        }
    }

    fn boolean(&mut self) -> String {
        let usual = self.one_of(&["True", "False"]);
        let other = self.one_of(&["true", "false", "TRUE", "1", "0", "Yes", "True1", ""]);
        if self.random.one_in(8) { other.into() } else { usual.into() }
    }

    fn size(&mut self) -> String {
        match self.below(4) {
            0 => self.below(200).to_string(),
            1 => (20 + self.below(2000)).to_string(),
            _ => self.word_of(SIZES).into(),
        }
    }

    fn fraction(&mut self) -> String {
        if self.random.one_in(3) {
            return format!("0.{}", self.random.next() >> self.below(60));
        }
        self.word_of(FRACTIONS).into()
    }

    /// Mostly a power of two.
    fn power(&mut self, most: usize) -> String {
        match self.below(8) {
            0 => self.below(most).to_string(),
            1 => self.size(),
            _ => (1_u64 << self.below(8)).to_string(),
        }
    }

    fn divisions(&mut self) -> String {
        if self.random.one_in(4) {
            return self.power(20);
        }
        let count = self.below(5);
        let items: Vec<String> = (0..count)
            .map(|_| {
                let size = match self.below(8) {
                    0 | 1 => ">".to_owned(),
                    2 => self.size(),
                    _ => (1_u64 << self.below(20)).to_string(),
                };
                format!("{size}:{}", self.power(20))
            })
            .collect();
        self.list(&items)
    }

    fn classes(&mut self) -> String {
        let count = self.below(4);
        let items: Vec<String> = (0..count)
            .map(|_| {
                let name = self.one_of(&["a", "serve", "train", "", "0.5", ">", "a b"]);
                format!("{name}:{}", self.word_of(RESERVES))
            })
            .collect();
        self.list(&items)
    }

    /// Brackets around items, mostly as they belong.
    fn list(&mut self, items: &[String]) -> String {
        let parting = if self.random.one_in(20) { self.one_of(&MARKS) } else { "," };
        let (mut open, mut close) = ("[", "]");
        if self.random.one_in(25) {
            open = self.one_of(&["", "[[", "]", "("]);
        }
        if self.random.one_in(25) {
            close = self.one_of(&["", "]]", "[", ",]", ")", "]1]"]);
        }
        format!("{open}{}{close}", items.join(parting))
    }

    /// Changes a text in a place: a letter less, a mark more, or another mark.
    fn blemish(&mut self, text: &mut String) {
        let letters: Vec<char> = text.chars().collect();
        let at = self.below(letters.len() + 1);
        let mark = self.one_of(&MARKS);
        // Mostly where marks are: elsewhere it is a word that nobody knows.
        let marks: Vec<usize> =
            (0..letters.len()).filter(|&at| ",:[]".contains(letters[at])).collect();
        let at = if self.random.one_in(4) || marks.is_empty() {
            at
        } else {
            marks[self.below(marks.len())]
        };
        let (before, rest) = letters.split_at(at);
        let (before, rest): (String, String) = (before.iter().collect(), rest.iter().collect());
        let shorter: String = rest.chars().skip(1).collect();
        *text = match self.below(4) {
            0 => format!("{before}{shorter}"),
            1 => format!("{before}{mark}{shorter}"),
            2 => format!("{before}{mark}"),
            _ => format!("{before}{mark}{rest}"),
        };
    }

    /// Puts white space anywhere.
    fn sprinkle(&mut self, text: &mut String) {
        for _ in 0..=self.below(6) {
            let places: Vec<usize> =
                text.char_indices().map(|(at, _)| at).chain([text.len()]).collect();
            let at = places[self.below(places.len())];
            text.insert_str(at, self.one_of(&[" ", "\t", "  ", "\x0b", "\x0c", "\r"]));
        }
    }

    /// Words and marks in no order.
    fn rubbish(&mut self) -> String {
        let count = self.below(9);
        let pieces: Vec<String> = (0..count)
            .map(|_| match self.below(4) {
                0 => self.word_of(KEYS).to_owned(),
                1 => self.any_value(),
                _ => self.one_of(&MARKS).to_owned(),
            })
            .collect();
        pieces.concat()
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn one_of(&mut self, words: &[&'static str]) -> &'static str {
        self.random.one_of(words)
    }

    fn word_of(&mut self, words: &'static str) -> &'static str {
        self.one_of(&words.split_whitespace().collect::<Vec<_>>())
    }
}

/// The generator called splitmix64.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// A number below `limit`, which is small beside 64 bits; 0 below 0.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}
