//! What a start by root would find: the user that the process becomes, and what is closed to it. And the same in an error
//! of a start, when it is too late.

use std::io;
use std::path::{Path, PathBuf};

use config::Config;
use config::types::{BindAddress, LogTarget};
use nix::unistd::{self, User};
use state::access_log::AccessLogError;
use state::confinement::Confinement;
use state::listen::BindError;
use sys::privilege::{self, Capability, Reach, Who};

use super::{DEFAULT_USER, asked, named_by, why_root};
use crate::causes::causes;
use crate::keytab::{Keytab, NamedBy};
use crate::paths::{self, Access, Need};

/// Keys whose files are made before the user changes.
const MADE_BEFORE: &[&str] = &[paths::PID_FILE, "control.socket", "admin.bind", "FILE", "include"];

/// What a start by root would find.
pub struct AtStart {
    pub user: String,
    /// Why root would not be left.
    pub stays_root: Option<String>,
    pub refused: Vec<RefusedPath>,
}

/// What the process could not use.
pub struct RefusedPath {
    /// Key that names it.
    pub key: String,
    pub message: String,
    pub hint: String,
}

/// `None` if this process is not root, or has more than one thread: it cannot ask then.
pub fn at_start_by_root(config: &Config, file: Option<&Path>) -> Option<AtStart> {
    if !unistd::geteuid().is_root() {
        return None;
    }
    let needs = paths::of(config, file);
    let (user, stays_root) = match &config.process.user {
        Some(user) => (user.clone(), None),
        None => match why_root(config, &needs).ok()? {
            None => (DEFAULT_USER.to_owned(), None),
            why => ("root".to_owned(), why),
        },
    };
    let group = config.process.group.as_deref();
    let who = match stays_root {
        None => Who::User { name: &user, group },
        Some(_) => Who::BareRoot,
    };
    let mut needs: Vec<Need> = needs;
    needs.retain(|need| !MADE_BEFORE.contains(&&*need.key) && !need.key.ends_with(".bind"));
    needs.retain(|need| !need.key.starts_with("environment "));
    let mut asked = asked(&needs);
    if let LogTarget::File(path) = &config.access_log.target {
        asked.push((path.clone(), Reach::Write));
    }
    let keytab = Keytab::of(config.remote_control()).filter(|it| it.named_by == NamedBy::System);
    asked.extend(keytab.iter().map(|it| (it.path.clone(), Reach::Read)));
    let asked = asked.iter().map(|(path, reach)| (&**path, *reach));
    let closed: Vec<PathBuf> =
        privilege::all_unreachable(who, asked).ok()?.into_iter().map(Path::to_owned).collect();
    let mut refused: Vec<RefusedPath> = Vec::new();
    for path in closed {
        if let Some(keytab) = keytab.as_ref().filter(|it| it.path == path) {
            let reason = Reason { user: &user, stays_root: stays_root.as_deref(), path: &path };
            refused.push(RefusedPath {
                key: "control.kerberos".to_owned(),
                message: format!("no ticket could be judged: {}", reason.why()),
                hint: keytab.open_to(&user),
            });
            continue;
        }
        let Some(need) = named_by(&needs, &path) else { continue };
        if refused.iter().any(|known| known.key == need.key) {
            continue;
        }
        let what = match (&*need.key, need.access) {
            ("access-log.target", _) => "the start would be refused",
            ("process.state-directory", _) => "nothing would be kept over a restart",
            (_, Access::Read) => "the process could not read it",
            (_, Access::Change | Access::Connect) => "the process could not use it",
        };
        let reason = Reason { user: &user, stays_root: stays_root.as_deref(), path: &path };
        refused.push(RefusedPath {
            key: need.key.clone(),
            message: format!("{what}: {}", reason.why()),
            hint: reason.hint(),
        });
    }
    Some(AtStart { user, stays_root, refused })
}

/// Says as which user this process was denied a file, why, and what to do.
fn denied(confinement: &Confinement, file: &Path) -> String {
    let user = User::from_uid(confinement.uid.into()).ok().flatten();
    let user = user.map_or_else(|| format!("uid {}", confinement.uid), |user| user.name);
    let directory = file.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let path = if file.exists() { file } else { directory };
    let reason = Reason { user: &user, stays_root: confinement.stays_root.as_deref(), path };
    format!("{}\n  hint: {}", reason.why(), reason.hint())
}

/// Why the access log cannot be opened: the user that the process has become opens it.
pub fn explain_log_error(error: &AccessLogError, confinement: &Confinement) -> String {
    let said = causes(error);
    match error {
        AccessLogError::Open { path, source } if source.kind() == io::ErrorKind::PermissionDenied => {
            format!("{said}\n  {}", denied(confinement, path))
        }
        AccessLogError::Open { .. } | AccessLogError::Thread { .. } => said,
    }
}

struct Reason<'a> {
    user: &'a str,
    stays_root: Option<&'a str>,
    path: &'a Path,
}

impl Reason<'_> {
    fn why(&self) -> String {
        let (user, path) = (self.user, self.path.display());
        match self.stays_root {
            None => format!("the process serves as user {user}, who may not use {path}"),
            Some(why) => format!(
                "the process serves as root without CAP_DAC_OVERRIDE, to whom {path}, of another user, is closed. \
                 It stays root because {why}"
            ),
        }
    }

    fn hint(&self) -> String {
        let path = text::shell::path(self.path);
        match self.stays_root {
            None => format!("give it to that user (chown {} {path}), or name another place", self.user),
            Some(_) => format!("do that, or give it to root (chown root {path})"),
        }
    }
}

/// Replaces the reason of a bind that failed because this process gave up at its start what a port below 1024 needs.
pub fn explain_low_port(confinement: &Confinement, error: BindError) -> BindError {
    let port = match &error.bind {
        BindAddress::AnyIp(port) => *port,
        BindAddress::Ip(address) => address.port(),
        BindAddress::Unix(_) | BindAddress::Systemd(_) | BindAddress::EveryPort(_) => return error,
    };
    let gave_up = confinement.given_up.contains(&Capability::NetBindService.name());
    if !(1..1024).contains(&port) || !gave_up || !error.reason.contains("Permission denied") {
        return error;
    }
    let reason = format!(
        "no listener had a port below 1024 when this process started, so it gave up CAP_NET_BIND_SERVICE, which port {port} \
         needs, and cannot take it back\n  hint: write the listener into the configuration file and restart penstock; \
         further ports below 1024 can then be added to the running server"
    );
    BindError { reason, ..error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_low_port_whose_capability_was_given_up_is_explained_by_that() {
        let error = |bind: &str| BindError {
            listener: "web".into(),
            bind: BindAddress::Ip(bind.parse().unwrap()),
            reason: "Permission denied (os error 13); ports below 1024 need root".to_owned(),
        };
        let with = |given_up: Vec<&'static str>| Confinement { given_up, ..Confinement::default() };
        let gave_up = with(vec!["CAP_NET_BIND_SERVICE"]);
        assert!(explain_low_port(&gave_up, error("127.0.0.1:80")).reason.contains("and restart penstock"));
        assert!(explain_low_port(&gave_up, error("127.0.0.1:8080")).reason.starts_with("Permission denied"));
        assert!(
            explain_low_port(&with(Vec::new()), error("127.0.0.1:80"))
                .reason
                .starts_with("Permission denied")
        );
    }

    #[test]
    fn a_denied_file_says_as_whom_why_and_what_to_do() {
        let file = Path::new("/nonexistent/penstock/access.log");
        let nobody = Confinement { uid: 65534, ..Confinement::default() };
        let said = denied(&nobody, file);
        assert!(said.contains("serves as user nobody, who may not use /nonexistent/penstock"), "{said}");
        assert!(said.contains("chown nobody /nonexistent/penstock"), "{said}");
        let why = "user \"penstock\" may not use /etc/ssl/x";
        let root = Confinement { stays_root: Some(why.to_owned()), ..Confinement::default() };
        let said = denied(&root, file);
        assert!(said.contains("root without CAP_DAC_OVERRIDE") && said.contains(why), "{said}");
        assert!(said.contains("chown root /nonexistent/penstock"), "{said}");
    }
}
