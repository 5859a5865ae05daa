//! Pairs of contestants that are compared.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pairing {
    /// This contestant is compared with every other: `penstock` with its rivals.
    Subject(String),
    /// Every other contestant is compared with this one: all with `tcp`.
    Reference(String),
    Pairs(Vec<(String, String)>),
}

impl Pairing {
    /// Returns the pairs (subject, other) among `names`, in their order.
    pub fn pairs(&self, names: &[&str]) -> Vec<(String, String)> {
        let others =
            |one: &String| names.iter().filter(|name| **name != one).map(|name| (*name).to_owned()).collect();
        match self {
            Pairing::Pairs(pairs) => {
                let here = |name: &String| names.contains(&name.as_str());
                pairs.iter().filter(|(subject, other)| here(subject) && here(other)).cloned().collect()
            }
            Pairing::Subject(one) | Pairing::Reference(one) if !names.contains(&one.as_str()) => Vec::new(),
            Pairing::Subject(one) => {
                let others: Vec<String> = others(one);
                others.into_iter().map(|other| (one.clone(), other)).collect()
            }
            Pairing::Reference(one) => {
                let others: Vec<String> = others(one);
                others.into_iter().map(|other| (other, one.clone())).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_name_the_subject_first() {
        let names = ["a", "b", "c"];
        let pair = |x: &str, y: &str| (x.to_owned(), y.to_owned());
        assert_eq!(Pairing::Subject("b".into()).pairs(&names), [pair("b", "a"), pair("b", "c")]);
        assert_eq!(Pairing::Reference("a".into()).pairs(&names), [pair("b", "a"), pair("c", "a")]);
        assert_eq!(Pairing::Subject("x".into()).pairs(&names), []);
        let some = Pairing::Pairs(vec![pair("c", "a"), pair("c", "gone")]);
        assert_eq!(some.pairs(&names), [pair("c", "a")]);
    }
}
