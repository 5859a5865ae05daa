//! Signals by their names in RFC 4254 section 6.10.

use std::mem::discriminant;

use russh::Sig;

const NAMED: [(&str, Sig); 12] = [
    ("ABRT", Sig::ABRT),
    ("ALRM", Sig::ALRM),
    ("FPE", Sig::FPE),
    ("HUP", Sig::HUP),
    ("ILL", Sig::ILL),
    ("INT", Sig::INT),
    ("KILL", Sig::KILL),
    ("PIPE", Sig::PIPE),
    ("QUIT", Sig::QUIT),
    ("SEGV", Sig::SEGV),
    ("TERM", Sig::TERM),
    ("USR1", Sig::USR1),
];

/// Returns the signal with this name, with or without `SIG`.
#[must_use]
pub fn named(name: &str) -> Option<Sig> {
    let name = name.strip_prefix("SIG").unwrap_or(name);
    NAMED.into_iter().find(|(word, _)| *word == name).map(|(_, signal)| signal)
}

/// Returns the signal with this name, which may be one that only the server knows.
pub(crate) fn any(name: &str) -> Sig {
    named(name).unwrap_or_else(|| Sig::Custom(name.strip_prefix("SIG").unwrap_or(name).to_owned()))
}

/// Returns the name of a signal without `SIG`, safe to print on a terminal.
pub(crate) fn word(signal: &Sig) -> String {
    // The server chose this name freely, so it must be escaped.
    if let Sig::Custom(name) = signal {
        return name.chars().filter(char::is_ascii_graphic).take(LONGEST_NAME).collect();
    }
    let same = |named: &Sig| discriminant(named) == discriminant(signal);
    NAMED
        .iter()
        .find(|(_, named)| same(named))
        .map_or_else(|| format!("{signal:?}"), |(word, _)| (*word).to_owned())
}

const LONGEST_NAME: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_signals_are_the_same_in_both_directions() {
        for (name, _) in NAMED {
            assert_eq!(named(name).map(|signal| word(&signal)).as_deref(), Some(name));
            assert_eq!(word(&any(&format!("SIG{name}"))), name);
        }
        assert!(named("WINCH").is_none());
        assert!(matches!(any("SIGWINCH"), Sig::Custom(name) if name == "WINCH"));
    }

    #[test]
    fn a_name_of_the_servers_own_choice_is_harmless() {
        assert_eq!(word(&Sig::Custom("x\u{1b}[31m y".to_owned() + &"z".repeat(100))).len(), LONGEST_NAME);
        assert!(!word(&Sig::Custom("x\u{1b}y".to_owned())).contains('\u{1b}'));
    }
}
