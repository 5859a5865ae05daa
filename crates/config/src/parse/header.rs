//! Header fields: edits of requests and responses, and conditions of routes.

use std::collections::HashMap;

use logic::route::{HeaderEdit, HeaderEdits, HeaderMatch, HeaderValueMatch};

use super::parser::Parser;
use crate::de::{At, Key};
use crate::quote::quote;
use crate::raw::{RawEdits, Scalar};
use crate::tree::NodeId;

#[derive(Clone, Copy)]
enum Direction {
    Request,
    Response,
}

impl Parser<'_> {
    pub(super) fn edits(&mut self, request: &Key<RawEdits>, response: &Key<RawEdits>) -> Option<HeaderEdits> {
        let request = self.changes(request, Direction::Request);
        let response = self.changes(response, Direction::Response);
        Some(HeaderEdits { request: request?, response: response? })
    }

    fn changes(&mut self, key: &Key<RawEdits>, direction: Direction) -> Option<Vec<HeaderEdit>> {
        let Some(edits) = key else {
            return Some(Vec::new());
        };
        let mut seen: HashMap<String, NodeId> = HashMap::new();
        let mut changes = Vec::new();
        let mut faults = 0;
        let removed = edits.value.remove.as_ref().map(|list| list.value.as_slice()).unwrap_or_default();
        for name in removed {
            match HeaderEdit::remove(&name.value) {
                Ok(change) => changes.push(self.only_once(&mut seen, &name.value, name.id).map(|()| change)),
                Err(error) => {
                    faults += 1;
                    drop(self.refuse_with(name, &error));
                }
            }
        }
        let set = edits.value.set.as_ref().map(|set| set.value.0.as_slice()).unwrap_or_default();
        for (name, value) in set {
            // Faults name only the field, because the value may be a secret.
            match HeaderEdit::set(name, &value.value) {
                Ok(change) => changes.push(self.only_once(&mut seen, name, value.id).map(|()| change)),
                Err(error) => {
                    faults += 1;
                    drop(self.report.at_key(self.nodes, value.id, error.to_string()));
                }
            }
            if matches!(direction, Direction::Response)
                && name.eq_ignore_ascii_case("strict-transport-security")
            {
                faults += 1;
                let message = "Strict-Transport-Security has a key of its own";
                drop(
                    self.report
                        .at_key(self.nodes, value.id, message)
                        .hint("use hsts = \"365d\" on the listener"),
                );
            }
            if value.value.len() > LONGEST_VALUE {
                faults += 1;
                let message = format!("the value is too long: at most {LONGEST_VALUE} bytes");
                drop(self.report.at_key(self.nodes, value.id, message));
            }
        }
        if changes.len() > MOST_CHANGES {
            let message = format!("more than {MOST_CHANGES} header fields");
            drop(self.report.at_key(self.nodes, edits.id, message));
            return None;
        }
        if faults > 0 {
            return None;
        }
        changes.into_iter().collect()
    }

    /// Reports a field name that is given twice. Names ignore case, so the order of two edits would be unclear.
    fn only_once(&mut self, seen: &mut HashMap<String, NodeId>, name: &str, id: NodeId) -> Option<()> {
        match seen.insert(name.to_ascii_lowercase(), id) {
            None => Some(()),
            Some(first) => {
                let place = self.report.whereabouts(self.nodes, first);
                let message = format!("{} is changed twice{place}", quote(name));
                drop(
                    self.report
                        .at_key(self.nodes, id, message)
                        .hint("`set` replaces the header: delete the `remove` of it"),
                );
                None
            }
        }
    }

    pub(super) fn header_conditions(&mut self, entries: &[(String, At<Scalar>)]) -> Option<Vec<HeaderMatch>> {
        let mut seen: HashMap<String, NodeId> = HashMap::new();
        let mut conditions = Vec::new();
        for (name, value) in entries {
            if !is_token(name) {
                let message = format!("{} is not a valid header name", quote(name));
                drop(self.report.at_key(self.nodes, value.id, message));
                conditions.push(None);
                continue;
            }
            if let Some(first) = seen.insert(name.to_ascii_lowercase(), value.id) {
                let place = self.report.whereabouts(self.nodes, first);
                let message =
                    format!("{} is given twice{place}: header names are case-insensitive", quote(name));
                drop(self.report.at_key(self.nodes, value.id, message));
                conditions.push(None);
                continue;
            }
            let wanted = match &value.value {
                Scalar::Text(text) => {
                    let trimmed = text.trim_matches([' ', '\t']);
                    if trimmed.len() != text.len()
                        || text.bytes().any(|byte| byte < 0x20 && byte != b'\t' || byte == 0x7f)
                    {
                        let message =
                            "no header field has such a value: blanks around it, or control characters";
                        drop(self.report.at_key(self.nodes, value.id, message));
                        conditions.push(None);
                        continue;
                    }
                    HeaderValueMatch::Exact(text.as_str().into())
                }
                Scalar::Integer(_) | Scalar::Switch(_) => HeaderValueMatch::Present,
            };
            conditions.push(Some(HeaderMatch { name: name.to_ascii_lowercase().into(), value: wanted }));
        }
        conditions.into_iter().collect()
    }

    /// Reads the name of the header field with the request id; `Some(None)` if there is to be none.
    pub(super) fn request_id_header(&mut self, key: &Key<String>) -> Option<Option<Box<str>>> {
        let name = key.as_ref()?;
        // `HeaderEdit` refuses fields that frame the message or name the host; these are also reserved.
        let ours = [
            "forwarded",
            "x-forwarded-for",
            "x-forwarded-proto",
            "x-forwarded-host",
            "cookie",
            "authorization",
        ];
        let text = &name.value;
        if text == "off" {
            return Some(None);
        }
        if !is_token(text) || text.len() > 64 {
            drop(self.refuse(name, "is not a valid header name"));
            return None;
        }
        if HeaderEdit::set(text, "").is_err()
            || HeaderEdit::remove(text).is_err()
            || ours.iter().any(|taken| text.eq_ignore_ascii_case(taken))
        {
            drop(self.refuse(name, "is reserved: it has a fixed meaning").hint("\"X-Request-Id\" is usual"));
            return None;
        }
        Some(Some(text.as_str().into()))
    }
}

/// Checks the `token` syntax of RFC 9110 section 5.6.2.
pub(super) fn is_token(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !text.is_empty() && text.bytes().all(fits)
}

const LONGEST_VALUE: usize = 8192;
const MOST_CHANGES: usize = 200;
