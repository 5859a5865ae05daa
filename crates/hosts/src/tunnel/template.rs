//! Word of a command with names in `{ }` whose values are known only when the tunnel is up: `port={nfs.port}`. No shell
//! is involved: a word stays one word, whatever the values.

use std::collections::BTreeMap;

/// Values of the names in `{ }`, known when all forwards listen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Values(pub(super) BTreeMap<String, String>);

impl Values {
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    pieces: Vec<Piece>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Piece {
    Text(String),
    Name(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    #[error("nothing here is named {{{0}}}")]
    Unknown(String),
    #[error("a {{ is not closed; for a plain one write {{{{")]
    Open,
    #[error("a }} closes nothing; for a plain one write }}}}")]
    Closed,
}

impl Template {
    /// Parses a word; `known` are the valid names.
    pub fn parse(text: &str, known: &[String]) -> Result<Self, TemplateError> {
        let mut pieces = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            plain.push_str(&rest[..at]);
            let brace = &rest[at..=at];
            let after = &rest[at + 1..];
            if after.starts_with(brace) {
                plain.push_str(brace);
                rest = &after[1..];
                continue;
            }
            if brace == "}" {
                return Err(TemplateError::Closed);
            }
            let (name, further) = after.split_once('}').ok_or(TemplateError::Open)?;
            if !known.iter().any(|known| known == name) {
                return Err(TemplateError::Unknown(name.to_owned()));
            }
            if !plain.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut plain)));
            }
            pieces.push(Piece::Name(name.to_owned()));
            rest = further;
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            pieces.push(Piece::Text(plain));
        }
        Ok(Self { pieces })
    }

    /// Fills in the values. A name without a value becomes empty; [`Template::parse`] refuses such names.
    #[must_use]
    pub fn fill(&self, values: &Values) -> String {
        let word = |piece: &Piece| match piece {
            Piece::Text(text) => text.clone(),
            Piece::Name(name) => values.get(name).unwrap_or_default().to_owned(),
        };
        self.pieces.iter().map(word).collect()
    }
}

/// Fills in known names in a word of the job command. The command is often a shell or awk script, so other braces and
/// `${NAME}` stay unchanged. `{{NAME}}` stands for the text `{NAME}`.
#[must_use]
pub fn fill_known(text: &str, values: &Values) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        out.push_str(before);
        let doubled = after.strip_prefix('{').and_then(|inner| inner.split_once("}}"));
        if let Some((name, further)) = doubled.filter(|(name, _)| values.get(name).is_some()) {
            out.extend(["{", name, "}"]);
            rest = further;
            continue;
        }
        let single = after.split_once('}').filter(|_| !before.ends_with('$'));
        match single.and_then(|(name, further)| Some((values.get(name)?, further))) {
            Some((value, further)) => {
                out.push_str(value);
                rest = further;
            }
            None => {
                out.push('{');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Listen, MountPoint};
    use super::*;

    #[test]
    fn names_are_replaced_and_doubled_braces_are_plain() {
        let known = ["nfs.port".to_owned(), "mount-point".to_owned()];
        let listens = [("nfs", Listen::Tcp("127.0.0.1:4049".parse().unwrap()))];
        let values = Values::new(listens.into_iter(), MountPoint::At(std::path::Path::new("/a b")));
        let filled = |text: &str| Template::parse(text, &known).map(|template| template.fill(&values));
        assert_eq!(filled("port={nfs.port},ro").unwrap(), "port=4049,ro");
        assert_eq!(filled("{mount-point}").unwrap(), "/a b");
        assert_eq!(filled("a{{b}}c").unwrap(), "a{b}c");
        assert_eq!(filled("").unwrap(), "");
        assert_eq!(filled("{x}"), Err(TemplateError::Unknown("x".into())));
        assert_eq!(filled("{nfs.port"), Err(TemplateError::Open));
        assert_eq!(filled("a}"), Err(TemplateError::Closed));
    }

    #[test]
    fn a_command_of_anybody_keeps_the_braces_that_are_its_own() {
        let listens = [("db", Listen::Tcp("127.0.0.1:5432".parse().unwrap()))];
        let values = Values::new(listens.into_iter(), MountPoint::At(std::path::Path::new("/{db}")));
        for (word, wanted) in [
            ("{db}", "127.0.0.1:5432"),
            ("h={db.host} p={db.port}{db}", "h=127.0.0.1 p=5432127.0.0.1:5432"),
            ("{mount-point}/x", "/{db}/x"),
            ("${db} {{db}} {{db.port}}", "${db} {db} {db.port}"),
            ("{ print $1 } {} {x} {{x}} {{}} {db", "{ print $1 } {} {x} {{x}} {{}} {db"),
            ("{{db} {a{db}} }{", "{127.0.0.1:5432 {a127.0.0.1:5432} }{"),
        ] {
            assert_eq!(fill_known(word, &values), wanted, "{word}");
        }
    }
}
