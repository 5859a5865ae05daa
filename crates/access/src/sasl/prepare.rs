//! SASLprep (RFC 4013): user names and passwords that look alike to people become the same bytes on both sides, whichever
//! keyboard and program they came from. What it forbids is refused with a reason that shows nothing of the text.

use std::borrow::Cow;

use stringprep::{saslprep, tables};

/// Longest name or password in bytes, before and after it is prepared: one code point may become eighteen.
const LONGEST: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    #[error("is empty")]
    Empty,
    #[error("has more than {LONGEST} bytes")]
    TooLong,
    #[error("has a control character")]
    Control,
    #[error(
        "has a character that Unicode 3.2 does not have: programs prepare it differently, so SASLprep refuses it"
    )]
    Unassigned,
    #[error("has a character that SASLprep prohibits (RFC 4013), such as one of private use")]
    Prohibited,
    #[error("mixes writing from right to left and from left to right, which SASLprep prohibits (RFC 4013)")]
    Direction,
}

/// Prepares a user name or a password that is stored or compared: NFKC, other spaces as a space, soft hyphens and the like
/// left out. It changes nothing in ASCII.
pub fn prepare(text: &str) -> Result<Cow<'_, str>, PrepareError> {
    if text.len() > LONGEST {
        return Err(PrepareError::TooLong);
    }
    // Before NFKC, which may turn such a one into a character that all programs know.
    if text.contains(tables::unassigned_code_point) {
        return Err(PrepareError::Unassigned);
    }
    let prepared = saslprep(text).map_err(|_| fault(text))?;
    match prepared.len() {
        0 => Err(PrepareError::Empty),
        1..=LONGEST => Ok(prepared),
        _ => Err(PrepareError::TooLong),
    }
}

/// What is wrong with a text that cannot be prepared. The library names the character itself, which may be one of a password.
fn fault(text: &str) -> PrepareError {
    let has = |kinds: &[fn(char) -> bool]| text.contains(|char| kinds.iter().any(|is| is(char)));
    if has(&[tables::ascii_control_character, tables::non_ascii_control_character]) {
        return PrepareError::Control;
    }
    let right_to_left = text.contains(tables::bidi_r_or_al);
    let is_prohibited = has(&[
        tables::private_use,
        tables::non_character_code_point,
        tables::inappropriate_for_plain_text,
        tables::inappropriate_for_canonical_representation,
        tables::change_display_properties_or_deprecated,
        tables::tagging_character,
    ]);
    if right_to_left && !is_prohibited { PrepareError::Direction } else { PrepareError::Prohibited }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4013 section 3.
    #[test]
    fn the_examples_of_the_standard_are_prepared_as_it_says() {
        for (text, prepared) in [
            ("I\u{ad}X", "IX"),
            ("user", "user"),
            ("USER", "USER"),
            ("\u{aa}", "a"),
            ("\u{2168}", "IX"),
            ("stra\u{df}e", "stra\u{df}e"),
            // One letter, and two that look like it.
            ("\u{fc}", "\u{fc}"),
            ("u\u{308}", "\u{fc}"),
            ("\u{ff41}\u{ff42}", "ab"),
            ("a\u{a0}b\u{3000}c", "a b c"),
            ("\u{627}\u{628}", "\u{627}\u{628}"),
        ] {
            assert_eq!(prepare(text).as_deref(), Ok(prepared), "{text:?}");
        }
    }

    #[test]
    fn what_the_standard_forbids_is_refused_with_its_kind() {
        for (text, error) in [
            ("", PrepareError::Empty),
            ("\u{ad}\u{200d}", PrepareError::Empty),
            ("a\u{7}", PrepareError::Control),
            ("a\u{7f}", PrepareError::Control),
            ("a\0", PrepareError::Control),
            ("a\u{85}", PrepareError::Control),
            ("\u{627}1", PrepareError::Direction),
            ("\u{627}a\u{628}", PrepareError::Direction),
            ("\u{e000}", PrepareError::Prohibited),
            ("\u{e000}\u{627}", PrepareError::Prohibited),
            ("a\u{fffd}", PrepareError::Prohibited),
            ("a\u{200e}", PrepareError::Prohibited),
            ("a\u{e0041}", PrepareError::Prohibited),
            // Of Unicode 3.2, this one is not: the first emoji are younger, and so is what NFKC makes an F of.
            ("\u{1f600}", PrepareError::Unassigned),
            ("\u{1d7ca}", PrepareError::Unassigned),
            ("\u{221}", PrepareError::Unassigned),
        ] {
            assert_eq!(prepare(text), Err(error), "{text:?}");
        }
        assert_eq!(prepare(&"x".repeat(1025)), Err(PrepareError::TooLong));
        assert_eq!(prepare(&"x".repeat(1024)).map(|text| text.len()), Ok(1024));
        assert_eq!(prepare(&"\u{fdfa}".repeat(300)), Err(PrepareError::TooLong), "it grows eleven times");
    }
}
