//! Text: what settings are written as, part by part.

use super::error::SettingsError;

/// The parts of a settings text. A comma in brackets parts nothing.
pub(super) fn parts(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_usize;
    text.split(move |letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    })
}

/// The key of a part, which has none if it is not written `key:value`.
pub(super) fn key_of(part: &str) -> Option<&str> {
    part.split_once(':').map(|(key, _)| key.trim())
}

/// Takes a key out of a text: its value, and the text without it.
pub(super) fn split_key(
    text: &str,
    key: &'static str,
) -> Result<(Option<String>, String), SettingsError> {
    let mut found: Option<&str> = None;
    let mut rest: Vec<&str> = Vec::new();
    for part in parts(text) {
        match part.split_once(':').filter(|(name, _)| name.trim() == key) {
            None => rest.push(part),
            Some(_) if found.is_some() => return Err(SettingsError::Twice(key)),
            Some((_, value)) => found = Some(value.trim()),
        }
    }
    if found == Some("") {
        return Err(SettingsError::NoValue(key));
    }
    // Without it a comma may be left at the end, which the settings' text allows.
    let is_bare = found.is_some() && rest.iter().all(|part| part.trim().is_empty());
    let rest = if is_bare { String::new() } else { rest.join(",") };
    Ok((found.map(str::to_owned), rest))
}
