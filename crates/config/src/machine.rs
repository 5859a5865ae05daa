//! Faults that only the machine shows, such as a directory that is missing: they get the place of their key in the file,
//! as every other fault has it.

use crate::Loaded;
use crate::edit::Path;
use crate::error::{Fault, Position, Severity};
use crate::tree::NodeId;

/// A fault that was found after the configuration was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineFault {
    /// The key, such as `access-log.target`.
    pub key: String,
    pub message: String,
    /// Advice for the operator.
    pub hint: Option<String>,
}

impl Loaded {
    /// Adds a fault to the warnings, at the value of its key; where the key has no value of its own, at what is nearest
    /// above it.
    pub fn add_fault(&mut self, fault: MachineFault, severity: Severity) {
        let MachineFault { key: path, message, hint } = fault;
        let node = self.nearest(&path);
        let from = node.and_then(|id| self.nodes.origin(id).outside());
        let span = node.filter(|_| from.is_none()).and_then(|id| self.nodes.value_span(id));
        let place = span.map(|span| {
            let first = self.places.line_start(span.start);
            let before = self.text.get(first..span.start).unwrap_or_default();
            let (line, column) = (self.places.line(span.start), before.chars().count() + 1);
            Position { line, column, start: span.start, end: span.end }
        });
        self.warnings.insert(Fault { place, from, path, message, hint, severity });
    }

    fn nearest(&self, path: &str) -> Option<NodeId> {
        let above = std::iter::successors(Some(path), |path| path.rsplit_once('.').map(|(above, _)| above));
        let mut paths = above.filter_map(|path| Path::parse(path).ok());
        paths.find_map(|path| self.node(&path))
    }
}

#[cfg(test)]
mod tests {
    use crate::{Environment, Source, load};

    use super::*;

    fn rendered(text: &str, env: &Environment, keys: &[&str]) -> String {
        let source = Source { name: "penstock.toml".into(), text: text.to_owned() };
        let mut loaded = load(&source, env).unwrap_or_else(|faults| panic!("{faults}"));
        for key in keys {
            let (key, message) = ((*key).to_owned(), "is missing".to_owned());
            loaded.add_fault(MachineFault { key, message, hint: Some("make it".into()) }, Severity::Warning);
        }
        loaded.warnings.render()
    }

    const FILE: &str = "[access-log]\n# a comment\ntarget = \"/var/log/ü/a.log\"\n\
                        [listener.web]\nbind = \":80\"\npool = \"app\"\ntls = { certificates = \"/certs\" }\n\
                        [pool.app]\nbackends = [\"127.0.0.1:1\"]\n";

    #[test]
    fn faults_of_the_machine_have_the_place_of_their_key_and_the_order_of_the_file() {
        let said =
            rendered(FILE, &Environment::default(), &["listener.web.tls.certificates", "access-log.target"]);
        assert_eq!(
            said,
            "warning: penstock.toml:3:10: access-log.target: is missing\n  \
             3 | target = \"/var/log/ü/a.log\"\n    |          ^^^^^^^^^^^^^^^^^^\n  hint: make it\n\
             warning: penstock.toml:7:24: listener.web.tls.certificates: is missing\n  \
             7 | tls = { certificates = \"/certs\" }\n    |                        ^^^^^^^^\n  hint: make it\n\
             2 warnings\n"
        );
    }

    #[test]
    fn a_value_of_the_environment_is_named_by_its_variable_and_an_unknown_key_by_what_is_above_it() {
        let variables = [("PENSTOCK_ACCESS_LOG_TARGET".to_owned(), "/gone/log".to_owned())].into();
        let env = Environment { variables, ..Environment::default() };
        let said = rendered(FILE, &env, &["access-log.target", "listener.web.tls.none.such"]);
        assert!(
            said.contains("warning: environment PENSTOCK_ACCESS_LOG_TARGET: access-log.target: is missing\n"),
            "{said}"
        );
        assert!(
            said.contains("warning: penstock.toml:7:7: listener.web.tls.none.such: is missing\n"),
            "{said}"
        );
    }
}
