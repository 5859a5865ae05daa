//! `[access-log]`.

use super::parser::Parser;
use crate::quote::quote;
use crate::raw::RawAccessLog;
use crate::types::{AccessLog, LogFormat, LogTarget};
use text::nearest::nearest;

impl Parser<'_> {
    pub(super) fn access_log(&mut self, raw: &RawAccessLog) -> Option<AccessLog> {
        let target = raw.target.as_ref().and_then(|target| {
            Some(match target.value.as_ref() {
                "stdout" => LogTarget::Stdout,
                "stderr" => LogTarget::Stderr,
                "off" => LogTarget::Off,
                path if path.starts_with('/') => LogTarget::File(self.file(target)?),
                other => {
                    let near = nearest(other, ["stdout", "stderr", "off"]);
                    let draft =
                        self.refuse(target, "is not \"stdout\", \"stderr\", \"off\" or an absolute path");
                    drop(match near {
                        Some(near) => draft.hint_from_value(format!("did you mean {}?", quote(near))),
                        None => draft.hint("a file is named from the root: \"/var/log/penstock/access.log\""),
                    });
                    return None;
                }
            })
        });
        let format = raw.format.as_ref().map(|format| match format.value.as_str() {
            "json" => LogFormat::Json,
            _ => LogFormat::Text,
        });
        Some(AccessLog { target: target?, format: format? })
    }
}
