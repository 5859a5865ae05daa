//! `[events]`.

use text::nearest::nearest;

use super::access_log::receiver;
use super::parser::Parser;
use crate::de::Key;
use crate::quote::quote;
use crate::raw::{RawEventSyslog, RawEvents};
use crate::types::{Events, Syslog};

/// Severity of messages that do not tell theirs: notice.
const SEVERITY: u8 = 5;

impl Parser<'_> {
    pub(super) fn events(&mut self, raw: &RawEvents) -> Option<Events> {
        let target = raw.target.as_ref()?;
        let settings = raw.syslog.as_ref().and_then(|syslog| {
            let RawEventSyslog { facility, app_name, max_length } = &syslog.value;
            self.messages(facility, Some(SEVERITY), app_name, max_length)
        });
        match target.value.as_ref() {
            "stderr" => {
                self.useless_syslog(raw);
                settings.map(|_| Events { syslog: None })
            }
            syslog if syslog.starts_with("syslog") => {
                let to = self.read(target, receiver);
                let (to, settings) = (to?, settings?);
                Some(Events { syslog: Some(Syslog { to, ..settings }) })
            }
            other => {
                let near = nearest(other, ["stderr"]);
                let draft = self.refuse(target, "is not \"stderr\" or \"syslog+...\"");
                drop(match near {
                    Some(near) => draft.hint_from_value(format!("did you mean {}?", quote(near))),
                    None => {
                        draft.hint("\"syslog+udp://10.0.0.9:514\" or \"syslog+unix:/dev/log\" is a receiver")
                    }
                });
                None
            }
        }
    }

    fn useless_syslog(&mut self, raw: &RawEvents) {
        let Some(syslog) = &raw.syslog else { return };
        let RawEventSyslog { facility, app_name, max_length } = &syslog.value;
        let is = |key: &Key<String>, usual: &str| key.as_ref().is_none_or(|key| key.value == usual);
        let usual_length = max_length.as_ref().is_none_or(|length| length.value.as_ref() == "8KiB");
        if !(is(facility, "daemon") && is(app_name, "penstock") && usual_length) {
            let draft =
                self.report.at_key(self.nodes, syslog.id, "does nothing unless target is \"syslog+...\"");
            drop(draft.hint("target = \"syslog+udp://10.0.0.9:514\" sends there").warning());
        }
    }
}
