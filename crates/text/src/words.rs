//! Enums with one word for each variant, in configurations, reports and JSON. The word stands next to the variant, and
//! a macro builds the list of all variants, so that none can be forgotten.

use std::fmt;

use crate::nearest::nearest;

/// Defines an enum with `ALL`, `WORDS`, `as_str`, `Display` and `FromStr`.
///
/// ```
/// text::words! {
///     /// How a pool chooses among its backends.
///     pub enum Policy: "way to balance" {
///         /// In turn.
///         RoundRobin = "round-robin",
///         /// By key.
///         Hash = "hash",
///     }
/// }
/// assert_eq!(Policy::ALL, [Policy::RoundRobin, Policy::Hash]);
/// assert_eq!("hash".parse(), Ok(Policy::Hash));
/// let unknown = "hsah".parse::<Policy>().unwrap_err();
/// assert_eq!(unknown.to_string(), "\"hsah\" is no way to balance; did you mean \"hash\"?");
/// ```
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* $vis:vis enum $name:ident: $what:literal {
        $($(#[$of_variant:meta])* $variant:ident = $word:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        $vis enum $name {
            $($(#[$of_variant])* $variant,)+
        }

        impl $name {
            /// All variants in the order of the documentation.
            $vis const ALL: &'static [Self] = &[$(Self::$variant,)+];
            /// Words of the variants, in the same order.
            $vis const WORDS: &'static [&'static str] = &[$($word,)+];

            #[must_use]
            $vis const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl ::std::str::FromStr for $name {
            type Err = $crate::words::UnknownWord;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err($crate::words::UnknownWord::new($what, text, Self::WORDS)),
                }
            }
        }
    };
}

/// Defines an enum of which each variant has a word for logs and reports, and the doc text of the variant is what the
/// documents say of the word. Variants with another such enum inside follow behind `;`, with the method that returns the
/// word of that enum. The documents are made from `meanings()`, so a variant without a doc text does not compile.
///
/// ```
/// text::meanings! {
///     /// Why a check failed.
///     #[derive(Clone, Copy, Debug, PartialEq, Eq)]
///     pub enum Failure {
///         /// No answer came
///         /// in time.
///         Timeout = "timeout",
///     }
/// }
/// assert_eq!(Failure::Timeout.word(), "timeout");
/// assert_eq!(Failure::meanings(), [("timeout", "No answer came in time.".to_owned())]);
/// ```
#[macro_export]
macro_rules! meanings {
    ($(#[$meta:meta])* $vis:vis enum $name:ident {
        $($(#[doc = $line:literal])+ $variant:ident = $word:literal,)+
        $(; $($(#[doc = $of_inner:literal])+ $outer:ident($inner:ty: $of:ident),)+)?
    }) => {
        $(#[$meta])*
        $vis enum $name {
            $($(#[doc = $line])+ $variant,)+
            $($($(#[doc = $of_inner])+ $outer($inner),)+)?
        }

        impl $name {
            #[must_use]
            $vis const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                    $($(Self::$outer(inner) => inner.$of(),)+)?
                }
            }

            /// All words with what they mean, for the documents.
            #[must_use]
            $vis fn meanings() -> Vec<(&'static str, String)> {
                let own = [$(($word, concat!($($line),+)),)+];
                let own = own.into_iter().map(|(word, meaning)| (word, meaning.trim().to_owned()));
                own$($(.chain(<$inner>::meanings()))+)?.collect()
            }
        }
    };
}

/// Error: the text is no word of an enum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownWord {
    what: &'static str,
    written: Box<str>,
    words: &'static [&'static str],
}

impl UnknownWord {
    /// Error about an enum `what` with the words `words`.
    #[must_use]
    pub fn new(what: &'static str, written: &str, words: &'static [&'static str]) -> Self {
        Self { what, written: written.into(), words }
    }
}

impl fmt::Display for UnknownWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let written = crate::terminal::quoted(&self.written, 80);
        match nearest(&self.written, self.words.iter().copied()) {
            Some(near) => write!(f, "{written} is no {}; did you mean \"{near}\"?", self.what),
            None => write!(f, "{written} is no {}; use {}", self.what, alternatives(self.words)),
        }
    }
}

impl std::error::Error for UnknownWord {}

/// Formats alternatives: `a, b or c`.
#[must_use]
pub fn alternatives(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [first @ .., last] => format!("{} or {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_word_is_answered_with_those_that_are_known() {
        let unknown = UnknownWord::new("colour", "x\n", &["red", "green", "blue"]);
        assert_eq!(unknown.to_string(), r#""x\n" is no colour; use red, green or blue"#);
        assert_eq!(alternatives(&["red"]), "red");
    }
}
