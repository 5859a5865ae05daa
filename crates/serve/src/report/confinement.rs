//! What the process may do since its start, in `penstock ctl status`.

use serde::Serialize;
use state::confinement::{Confinement, Restriction};

#[derive(Clone, Debug, Serialize)]
pub struct ConfinementReport {
    pub uid: u32,
    /// Why root was not left, if it was not.
    pub stays_root: Option<String>,
    /// Names of capabilities(7) that the process has.
    pub capabilities: Vec<&'static str>,
    /// Landlock.
    pub files: RestrictionReport,
    /// seccomp(2).
    pub system_calls: RestrictionReport,
}

#[derive(Clone, Debug, Serialize)]
pub struct RestrictionReport {
    /// `restricted`, `partly` or `not`.
    pub state: &'static str,
    pub reason: Option<String>,
}

impl ConfinementReport {
    pub fn read(confinement: &Confinement) -> Self {
        Self {
            uid: confinement.uid,
            stays_root: confinement.stays_root.clone(),
            capabilities: confinement.capabilities.clone(),
            files: RestrictionReport::read(&confinement.files),
            system_calls: RestrictionReport::read(&confinement.calls),
        }
    }

    /// `uid 65534, no capability; files restricted; system calls NOT restricted: --no-sandbox`
    pub fn line(&self) -> String {
        let capabilities = match &*self.capabilities {
            [] => "no capability".to_owned(),
            some => some.join(", "),
        };
        let root = self.stays_root.as_ref().map_or(String::new(), |why| format!(" (root: {why})"));
        let (files, calls) = (self.files.words(), self.system_calls.words());
        format!("privileges: uid {}{root}, {capabilities}; files {files}; system calls {calls}", self.uid)
    }
}

impl RestrictionReport {
    fn read(restriction: &Restriction) -> Self {
        Self { state: restriction.word(), reason: restriction.reason().map(str::to_owned) }
    }

    fn words(&self) -> String {
        match (self.state, &self.reason) {
            ("not", Some(why)) => format!("NOT restricted: {why}"),
            ("partly", Some(why)) => format!("restricted in part: {why}"),
            (state, _) => state.to_owned(),
        }
    }
}
