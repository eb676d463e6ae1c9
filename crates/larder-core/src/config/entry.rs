//! Entries: the `key:value` pairs of a settings text, and what their values can be.

use crate::config::reserve::Reserve;
use crate::config::{Backend, ConfigError, DIVISION_CLASSES, SIZE_MAX_BYTES, division_class};
use crate::types::MIB;

/// One `key:value` of a text.
pub(super) struct Entry<'a> {
    pub(super) key: &'a str,
    pub(super) value: &'a str,
}

impl Entry<'_> {
    fn bad(&self, expected: impl Into<String>) -> ConfigError {
        ConfigError::BadValue {
            key: self.key.to_owned(),
            value: self.value.to_owned(),
            expected: expected.into(),
        }
    }

    pub(super) fn boolean(&self) -> Result<bool, ConfigError> {
        match self.value {
            "True" => Ok(true),
            "False" => Ok(false),
            _ => Err(self.bad("True or False")),
        }
    }

    pub(super) fn backend(&self) -> Result<Backend, ConfigError> {
        match self.value {
            "native" => Ok(Backend::Native),
            "cudaMallocAsync" => Ok(Backend::CudaMallocAsync),
            _ => Err(self.bad("native or cudaMallocAsync")),
        }
    }

    /// A whole number of MiB of at least `least_mb`, in bytes. What is larger than any memory is as
    /// good as `SIZE_MAX_BYTES`.
    pub(super) fn mebibytes_from(&self, least_mb: u64) -> Result<u64, ConfigError> {
        let expected = || self.bad(format!("a whole number of MiB, {least_mb} or more"));
        let mebibytes: u64 = self.value.parse().map_err(|_| expected())?;
        if mebibytes < least_mb {
            return Err(expected());
        }
        Ok(mebibytes.min(SIZE_MAX_BYTES / MIB) * MIB)
    }

    pub(super) fn page_bytes(&self) -> Result<u64, ConfigError> {
        let mebibytes = self.value.parse().ok();
        let even = mebibytes.filter(|&mebibytes: &u64| {
            mebibytes.is_multiple_of(2) && (2..=1024).contains(&mebibytes)
        });
        let expected = || self.bad("an even number of MiB from 2 to 1024");
        even.map(|mebibytes| mebibytes * MIB).ok_or_else(expected)
    }

    pub(super) fn register_threads(&self) -> Result<u64, ConfigError> {
        let expected = "a power of two from 1 to 128";
        let threads: u64 = self.value.parse().map_err(|_| self.bad(expected))?;
        let fits = threads.is_power_of_two() && threads <= 128;
        if fits { Ok(threads) } else { Err(self.bad(expected)) }
    }

    pub(super) fn fraction(
        &self,
        fits: impl Fn(f64) -> bool,
        expected: &str,
    ) -> Result<f64, ConfigError> {
        let value: f64 = self.value.parse().map_err(|_| self.bad(expected))?;
        if fits(value) { Ok(value) } else { Err(self.bad(expected)) }
    }

    /// One number for all size classes, or a list `[256:1,512:2,>:4]`. In a list the first entry
    /// also fills the classes below it, and `>` fills those after the last key.
    pub(super) fn divisions(&self) -> Result<[u64; DIVISION_CLASSES], ConfigError> {
        let mut divisions = [0; DIVISION_CLASSES];
        let Some(list) = self.value.strip_prefix('[') else {
            let expected = "a power of two, or a list of sizes in MiB and powers of two";
            let value: u64 = self.value.parse().map_err(|_| self.bad(expected))?;
            if !value.is_power_of_two() {
                return Err(self.bad(expected));
            }
            return Ok([value; DIVISION_CLASSES]);
        };
        let list = list.strip_suffix(']').unwrap_or(list);
        let mut class_last = None;
        let mut items = list.split(',').filter(|item| !item.is_empty()).peekable();
        if items.peek().is_none() {
            return Err(self.bad("a list with at least one size:divisions"));
        }
        for item in items {
            let (key, value) = item
                .split_once(':')
                .ok_or_else(|| self.bad("a list of size:divisions such as [256:1,512:2,>:4]"))?;
            let value: u64 = value
                .parse()
                .ok()
                .filter(|&value: &u64| value == 0 || value.is_power_of_two())
                .ok_or_else(|| self.bad("divisions that are 0 or a power of two"))?;
            if key == ">" {
                let from = class_last.unwrap_or(0) + 1;
                divisions[from..].fill(value);
                continue;
            }
            let mebibytes: u64 = key
                .parse()
                .ok()
                .filter(|&size: &u64| size.is_power_of_two())
                .ok_or_else(|| self.bad("sizes that are a power of two in MiB, or >"))?;
            let class = division_class(mebibytes.saturating_mul(MIB));
            if class_last.is_none() {
                divisions[..class].fill(value);
            }
            divisions[class] = value;
            class_last = Some(class);
        }
        Ok(divisions)
    }

    /// A part of the device's memory, or so many GiB.
    pub(super) fn reserve(&self) -> Result<Reserve, ConfigError> {
        Reserve::read(self.value).ok_or_else(|| self.bad(RESERVE_EXPECTED))
    }

    /// A list of names with such a reserve each.
    pub(super) fn reserves(&self) -> Result<Vec<(String, Reserve)>, ConfigError> {
        let list = self.value.strip_prefix('[').and_then(|list| list.strip_suffix(']'));
        let list = list.ok_or_else(|| self.bad("a list [name:value,…]"))?;
        let items = list.split(',').filter(|item| !item.is_empty()).map(|item| {
            let (name, value) = item.split_once(':').filter(|(name, _)| !name.is_empty())?;
            Some((name.to_owned(), Reserve::read(value)?))
        });
        let items: Option<Vec<_>> = items.collect();
        items.ok_or_else(|| {
            self.bad(format!("a list [name:value,…], each value {RESERVE_EXPECTED}"))
        })
    }
}

const RESERVE_EXPECTED: &str = "a part of the device's memory above 0, as 0.5, or GiB, as 40G";

/// Cuts a text, free of spaces by now, into its entries. A comma may close the text.
pub(super) fn entries(text: &str) -> Result<Vec<Entry<'_>>, ConfigError> {
    let mut entries: Vec<Entry<'_>> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (item, after) = cut_item(rest)?;
        let syntax = || ConfigError::BadSyntax { found: item.to_owned() };
        let (key, value) = item.split_once(':').ok_or_else(syntax)?;
        if key.is_empty() || value.is_empty() {
            return Err(syntax());
        }
        if entries.iter().any(|entry| entry.key == key) {
            return Err(ConfigError::Repeated { key: key.to_owned() });
        }
        entries.push(Entry { key, value });
        rest = after;
    }
    Ok(entries)
}

/// The first item of a text and what follows its comma. Commas inside brackets belong to the item.
fn cut_item(text: &str) -> Result<(&str, &str), ConfigError> {
    let mut depth = 0;
    for (at, letter) in text.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => return Ok((&text[..at], &text[at + 1..])),
            _ => {}
        }
        if !(0..=1).contains(&depth) {
            return Err(ConfigError::BadSyntax { found: text.to_owned() });
        }
    }
    if depth == 0 { Ok((text, "")) } else { Err(ConfigError::BadSyntax { found: text.to_owned() }) }
}
