//! What programs print: flat objects with numbers in them.

/// The number behind a key.
pub(crate) fn field<'a>(printed: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = printed.split_once(&format!("\"{key}\":"))?;
    rest.split([',', '}']).next().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_whole_keys_in_either_spelling() {
        let printed = r#"{"a.ooms":3,"ooms":-1,"num_ooms": 2}"#;
        assert_eq!(field(printed, "ooms"), Some("-1"));
        assert_eq!(field(printed, "num_ooms"), Some("2"));
        assert_eq!(field(printed, "oom"), None);
    }
}
