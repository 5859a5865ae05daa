//! Conditions of a `Match` line.

use ipnet::IpNet;

use super::setting::Bad;
use super::value;

/// Condition of a `Match` line, optionally negated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Criterion {
    pub sense: Negation,
    pub test: Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Negation {
    Is,
    IsNot,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Test {
    All,
    /// `canonical`: true only in the second pass.
    Canonical,
    /// `final`: requests a second pass, and is true only in that pass.
    Final,
    Host(String),
    OriginalHost(String),
    User(String),
    LocalUser(String),
    Exec(String),
    LocalNetwork(Vec<IpNet>),
    Tagged(String),
    Command(String),
    SessionType(String),
    Version(String),
}

/// Parses the words after `Match`. Both `host name` and `host=name` are conditions.
pub(super) fn parse(words: Vec<String>) -> Result<Vec<Criterion>, Bad> {
    let mut words = words.into_iter().peekable();
    let mut criteria = Vec::new();
    while let Some(word) = words.next() {
        let (sense, name) = match word.strip_prefix('!') {
            Some(name) => (Negation::IsNot, name),
            None => (Negation::Is, word.as_str()),
        };
        let (name, attached) = match name.split_once('=') {
            Some((name, argument)) if !argument.is_empty() => (name, Some(argument.to_owned())),
            Some((name, _)) => (name, None),
            None => (name, None),
        };
        let name = name.to_ascii_lowercase();
        let alone = match name.as_str() {
            "all" => Some(Test::All),
            "canonical" => Some(Test::Canonical),
            "final" => Some(Test::Final),
            _ => None,
        };
        if let Some(test) = alone {
            if test == Test::All && (criteria.len() > 1 || words.peek().is_some()) {
                return Err(Bad::new("\"all\" cannot be combined with other conditions"));
            }
            criteria.push(Criterion { sense, test });
            continue;
        }
        if !ARGUED.contains(&name.as_str()) {
            let bad = Bad::new(format!("\"{name}\" is not a condition of Match"));
            return Err(bad.hint(format!("one of all, canonical, final, {}", ARGUED.join(", "))));
        }
        let argument = match attached {
            Some(argument) => Some(argument),
            None => {
                let next = words.next();
                // Older versions of OpenSSH also accept `host = name`.
                if next.as_deref() == Some("=") { words.next() } else { next }
            }
        };
        let may_be_empty = matches!(name.as_str(), "tagged" | "command");
        let argument = argument
            .filter(|argument| may_be_empty || !argument.is_empty())
            .ok_or_else(|| Bad::new(format!("\"{name}\" has no argument")))?;
        let test = match name.as_str() {
            "host" => Test::Host(argument),
            "originalhost" => Test::OriginalHost(argument),
            "user" => Test::User(argument),
            "localuser" => Test::LocalUser(argument),
            "exec" => Test::Exec(argument),
            "localnetwork" => Test::LocalNetwork(networks(&argument)?),
            "tagged" => Test::Tagged(argument),
            "command" => Test::Command(argument),
            "sessiontype" => Test::SessionType(argument),
            _ => Test::Version(argument),
        };
        criteria.push(Criterion { sense, test });
    }
    match criteria.is_empty() {
        true => Err(Bad::new("a condition is missing").hint("`Match all` always holds")),
        false => Ok(criteria),
    }
}

fn networks(list: &str) -> Result<Vec<IpNet>, Bad> {
    let network = |text: &str| {
        let network = text.parse::<IpNet>().ok().or_else(|| value::address(text).map(IpNet::from));
        network.filter(|network| network.trunc() == *network).ok_or_else(|| {
            Bad::new(format!("\"{text}\" is not a network"))
                .hint("address/bits, such as 10.0.0.0/8, without bits after them")
        })
    };
    list.split(',').map(network).collect()
}

const ARGUED: &[&str] = &[
    "host",
    "originalhost",
    "user",
    "localuser",
    "exec",
    "localnetwork",
    "tagged",
    "command",
    "sessiontype",
    "version",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &str) -> Result<Vec<Criterion>, Bad> {
        parse(words.split(' ').map(str::to_owned).collect())
    }

    #[test]
    fn conditions_take_their_argument_as_a_word_or_after_an_equals_sign() {
        let wanted = vec![Criterion { sense: Negation::IsNot, test: Test::Host("web*".to_owned()) }];
        for words in ["!host web*", "!host=web*", "!HOST = web*", "!host= web*"] {
            assert_eq!(of(words).unwrap(), wanted, "{words}");
        }
    }

    #[test]
    fn all_stands_alone_or_after_final() {
        assert!(of("all").is_ok() && of("final all").is_ok());
        assert!(of("all host x").is_err() && of("host x user y all").is_err());
    }

    #[test]
    fn what_is_no_condition_is_refused() {
        for words in ["nohost x", "host", "localnetwork 10.0.0.0/33", "localnetwork 10.0.0.1/8", "user "] {
            assert!(of(words).is_err(), "{words}");
        }
        assert!(parse(Vec::new()).is_err());
    }
}
