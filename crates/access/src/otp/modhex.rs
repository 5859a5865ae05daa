//! Modhex: hexadecimal digits in the letters that most keyboard layouts have at the same place. Says what caps lock and the
//! Dvorak layout made of a text, and reads it all the same.

use std::fmt;

/// The letters of the digits 0 to 15.
const LETTERS: &[u8; 16] = b"cbdefghijklnrtuv";

/// What the same keys type in the Dvorak layout.
const DVORAK: &[u8; 16] = b"jxe.uidchtnbpygk";

/// How a text was typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Typed {
    /// Lower-case modhex.
    Plainly,
    /// With caps lock or the shift key.
    InCapitals,
    /// On a keyboard that is set to the Dvorak layout.
    InDvorak,
}

impl fmt::Display for Typed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plainly => "typed plainly",
            Self::InCapitals => "typed in capitals (caps lock)",
            Self::InDvorak => "typed with the Dvorak layout",
        })
    }
}

/// A text that is no modhex in any layout that is known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("character {at} ({found:?}) is not one of {}", "cbdefghijklnrtuv")]
pub struct NotModhex {
    /// Place of the first such character, from 1.
    pub at: usize,
    /// The character.
    pub found: char,
}

/// Brings a text into lower-case modhex, and says how it was typed.
pub fn read(text: &str) -> Result<(String, Typed), NotModhex> {
    let all_in = |letters: &[u8; 16]| text.chars().all(|c| index(letters, c).is_some());
    if all_in(LETTERS) {
        let typed = match text.bytes().any(|byte| byte.is_ascii_uppercase()) {
            true => Typed::InCapitals,
            false => Typed::Plainly,
        };
        return Ok((text.to_ascii_lowercase(), typed));
    }
    if all_in(DVORAK) {
        let letter = |c| index(DVORAK, c).map(|at| char::from(LETTERS[at]));
        return Ok((text.chars().filter_map(letter).collect(), Typed::InDvorak));
    }
    let wrong = text.chars().enumerate().find(|(_, c)| index(LETTERS, *c).is_none());
    let (at, found) = wrong.unwrap_or((0, '?'));
    Err(NotModhex { at: at + 1, found })
}

/// Modhex of bytes.
#[must_use]
pub fn encode(bytes: &[u8]) -> String {
    let letter = |half: u8| char::from(LETTERS[usize::from(half & 15)]);
    bytes.iter().flat_map(|byte| [letter(byte >> 4), letter(*byte)]).collect()
}

/// Bytes of lower-case modhex; `None` for any other text.
#[must_use]
pub fn decode(text: &str) -> Option<Vec<u8>> {
    let halves = text.bytes().map(|byte| LETTERS.iter().position(|letter| *letter == byte));
    let halves: Option<Vec<usize>> = halves.collect();
    let halves = halves.filter(|halves| halves.len() % 2 == 0)?;
    halves.chunks_exact(2).map(|pair| u8::try_from(pair[0] << 4 | pair[1]).ok()).collect()
}

fn index(letters: &[u8; 16], c: char) -> Option<usize> {
    // Shift and the full stop give `>`; caps lock leaves it as it is.
    let c = if c == '>' { '.' } else { c.to_ascii_lowercase() };
    letters.iter().position(|letter| char::from(*letter) == c)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_way_to_type_is_read_and_told_apart() {
        let plain = "ittrchbburhufhnddvbgrvjglcijfriu";
        assert_eq!(read(plain), Ok((plain.to_owned(), Typed::Plainly)));
        assert_eq!(read(&plain.to_uppercase()), Ok((plain.to_owned(), Typed::InCapitals)));
        let dvorak: String = plain.chars().map(|c| char::from(DVORAK[index(LETTERS, c).unwrap()])).collect();
        assert_eq!(read(&dvorak), Ok((plain.to_owned(), Typed::InDvorak)));
        assert_eq!(read(&dvorak.to_uppercase().replace('.', ">")), Ok((plain.to_owned(), Typed::InDvorak)));
    }

    #[test]
    fn another_character_is_named_with_its_place() {
        assert_eq!(read("cbda"), Err(NotModhex { at: 4, found: 'a' }));
        assert_eq!(read("ccc1").unwrap_err().to_string(), "character 4 ('1') is not one of cbdefghijklnrtuv");
    }

    proptest! {
        #[test]
        fn bytes_come_back(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let text = encode(&bytes);
            prop_assert_eq!(decode(&text), Some(bytes));
            prop_assert_eq!(read(&text).map(|(text, _)| text), Ok(text));
        }

        #[test]
        fn any_text_is_answered(text in "\\PC{0,64}") {
            if let Ok((read, _)) = read(&text) {
                prop_assert!(decode(&read).is_some() || read.len() % 2 == 1);
            }
        }
    }
}
