//! YAML group files of the `autodir` of ClusterShell.

use super::FileFault;
use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};
use std::collections::BTreeMap;

/// Node set of each group, by name.
type Listed = BTreeMap<String, String>;

/// Parses a file into its sources, each with its groups.
pub(super) fn read(place: &str, text: &str) -> Result<Vec<(String, Listed)>, FileFault> {
    let fault = |line: usize, what: &str, advice: &str| FileFault {
        place: place.to_owned(),
        line,
        what: what.to_owned(),
        advice: advice.to_owned(),
    };
    let documents = MarkedYaml::load_from_str(text).map_err(|error| {
        fault(error.marker().line(), &format!("this is not YAML: {}", error.info()), "correct it")
    })?;
    let mut sources = Vec::new();
    for document in &documents {
        let YamlData::Mapping(mapping) = &document.data else {
            if matches!(document.data, YamlData::Value(Scalar::Null)) {
                continue;
            }
            return Err(fault(line_of(document), "the file is not a mapping of sources", FORM));
        };
        for (source, groups) in mapping {
            let source_name = string(source)
                .ok_or_else(|| fault(line_of(source), "the name of this source is not text", QUOTES))?;
            let YamlData::Mapping(groups) = &groups.data else {
                return Err(fault(
                    line_of(source),
                    &format!("source \"{source_name}\" is not a mapping of groups"),
                    FORM,
                ));
            };
            let mut listed = Listed::new();
            for (group, nodes) in groups {
                let name = string(group)
                    .ok_or_else(|| fault(line_of(group), "the name of this group is not text", QUOTES))?;
                let set = set(nodes).ok_or_else(|| {
                    fault(
                        line_of(nodes),
                        &format!("the nodes of \"{name}\" are not text, nor a list of text"),
                        QUOTES,
                    )
                })?;
                listed.insert(name.to_owned(), set);
            }
            sources.push((source_name.to_owned(), listed));
        }
    }
    Ok(sources)
}

/// Joins a set or a list of sets into one text.
fn set(node: &MarkedYaml<'_>) -> Option<String> {
    match &node.data {
        YamlData::Sequence(sets) => {
            let sets: Option<Vec<&str>> = sets.iter().map(string).collect();
            Some(sets?.join("\n"))
        }
        YamlData::Value(Scalar::Null) => Some(String::new()),
        _ => string(node).map(str::to_owned),
    }
}

fn string<'n>(node: &'n MarkedYaml<'_>) -> Option<&'n str> {
    match &node.data {
        YamlData::Value(Scalar::String(text)) => Some(text),
        _ => None,
    }
}

fn line_of(node: &MarkedYaml<'_>) -> usize {
    node.span.start.line()
}

const FORM: &str = "write SOURCE:, below it lines GROUP: SET";
const QUOTES: &str = "put it in quotes";
