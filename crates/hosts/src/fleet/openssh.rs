//! Reads the log of the OpenSSH client (`ssh -v -E FILE`) as phases and results. The log is no stable interface: an
//! unknown message makes the result less precise, but not wrong. `fleet/run/openssh.rs` feeds the log.

use super::ending::{Core, Ending, Failure, Phase, Reason, Remote};
use super::verdict::is_identity;
use text::terminal::escaped;

mod identity;

pub use identity::{LAUNCH, LAUNCHER, Refusal, StderrReader, identity_options};

/// State of the log of one `ssh`.
#[derive(Debug, Clone)]
pub struct Log {
    partial: Vec<u8>,
    lines: usize,
    phase: Phase,
    reason: Option<Reason>,
    detail: Option<String>,
    /// Name of the host whose key was refused, as `ssh` looked the name up.
    refused: Option<String>,
    refusal: Option<Refusal>,
    status: Status,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    None,
    Exited,
    Signalled,
}

impl Default for Log {
    fn default() -> Self {
        let phase = Phase::Resolve;
        Self {
            partial: Vec::new(),
            lines: 0,
            phase,
            reason: None,
            detail: None,
            refused: None,
            refusal: None,
            status: Status::None,
        }
    }
}

impl Log {
    /// Adds log bytes, and returns the phase if the host reached a new one.
    pub fn feed(&mut self, bytes: &[u8]) -> Option<Phase> {
        let before = self.phase;
        self.partial.extend_from_slice(bytes);
        while let Some(end) = memchr::memchr(b'\n', &self.partial) {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            self.line(line.trim_end());
        }
        if self.partial.len() > LONGEST {
            self.partial.clear();
        }
        (self.phase > before).then_some(self.phase)
    }

    fn line(&mut self, line: &str) {
        self.lines += 1;
        // The connection belongs to another ssh (multiplexing), which sends the command and logs nothing here.
        if line.trim_start_matches("debug1: ").starts_with("mux_client") {
            self.phase = Phase::Run;
        }
        let Some(debug) = line.strip_prefix("debug1: ") else { return self.message(line) };
        let at = |start: &str| debug.starts_with(start);
        let phase = if at("Connecting to ") || at("Executing proxy command") {
            Phase::Connect
        } else if at("Connection established") || at("Local version string") {
            Phase::Identity
        } else if at("SSH2_MSG_NEWKEYS received") || at("SSH2_MSG_SERVICE_ACCEPT received") {
            Phase::Authenticate
        } else if at("Authentication succeeded") || at("Entering interactive session") {
            Phase::Start
        } else if at("Sending command") {
            Phase::Run
        } else {
            self.phase
        };
        self.phase = self.phase.max(phase);
        // Only these messages count: other lines can quote a server that is not yet verified, such as its banner.
        match debug.strip_prefix("client_input_channel_req: channel 0 rtype exit-") {
            Some(rest) if rest.starts_with("status") => self.status = Status::Exited,
            Some(rest) if rest.starts_with("signal") => self.status = Status::Signalled,
            _ => {}
        }
    }

    fn message(&mut self, line: &str) {
        let line = line.trim_matches(|c| c == '@' || c == ' ' || c == '\r');
        let has = |part: &str| line.contains(part);
        self.key_message(line);
        let reason = if has("Could not resolve hostname") {
            Reason::NoAddress
        } else if has("Connection refused") {
            Reason::ConnectionRefused
        } else if has("No route to host") || has("Network is unreachable") || has("Host is down") {
            Reason::Unreachable
        } else if has("timed out") {
            Reason::TimedOut
        } else if has("IDENTIFICATION HAS CHANGED") {
            Reason::KeyChanged
        } else if has("REVOKED HOST KEY") {
            Reason::KeyRefused
        } else if has("host key is known for") || has("KnownHostsCommand failed") {
            Reason::UnknownHost
        } else if has("Host key verification failed") {
            self.reason.unwrap_or(Reason::UnknownHost)
        } else if has("no matching ") && has("found") {
            Reason::NoCommonAlgorithm
        } else if has("Permission denied") || has("Too many authentication failures") {
            Reason::PermissionDenied
        } else if has("exec request failed on channel 0")
            || (self.phase < Phase::Run && (has("administratively prohibited") || has("open failed")))
        {
            // In later phases the same words are about channels that the command or a forward opens.
            Reason::ChannelRefused
        } else if (has("Connection closed by")
            || has("Connection reset by")
            || has("kex_exchange_identification: "))
            && self.phase <= Phase::Identity
        {
            Reason::ClosedByServer
        } else if has("Connection closed")
            || has("Connection reset")
            || has("Broken pipe")
            || has("not responding")
        {
            Reason::ConnectionLost
        } else if has("Bad configuration option") || has("Bad owner or permissions") {
            Reason::BadConfiguration
        } else {
            return;
        };
        // The first message is the cause; later messages repeat the cause in other words.
        if self.reason.is_none() {
            self.detail = Some(shown(line));
            self.reason = Some(reason);
        }
    }

    /// Reads the host whose key was refused, and the key. Messages about a changed key start with lines without both.
    fn key_message(&mut self, line: &str) {
        let changed = line.strip_prefix("Host key for ").and_then(|rest| rest.split_once(" has changed "));
        let unknown =
            line.split_once("host key is known for ").and_then(|(_, rest)| rest.split_once(" and "));
        let named = match (changed, unknown) {
            (Some((name, _)), _) => name,
            (_, Some((name, _))) => name,
            _ => {
                if self.reason == Some(Reason::KeyChanged) && line.starts_with("SHA256:") {
                    self.detail = Some(format!("it showed {}", shown(line.trim_end_matches('.'))));
                }
                return;
            }
        };
        if self.refused.is_some() {
            return;
        }
        // A port other than 22 follows the name in brackets.
        let name =
            named.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(named, |(name, _)| name);
        self.refused = Some(shown(name));
        if changed.is_some() && self.reason == Some(Reason::KeyChanged) {
            let showed = self.detail.take().filter(|detail| detail.starts_with("it showed "));
            let showed = showed.map(|showed| format!("; {showed}")).unwrap_or_default();
            self.detail = Some(format!("{}{showed}", shown(line.trim_end_matches('.'))));
        }
    }

    /// Sets the refusal by `penstock known-hosts`. The refusal counts if `ssh` ends before the log-in.
    pub fn refuse(&mut self, refusal: Refusal) {
        self.refusal = Some(refusal);
    }

    /// Result of the host. `code` or `signal` is how `ssh` ended.
    #[must_use]
    pub fn ending(&self, code: Option<i32>, signal: Option<i32>) -> Ending {
        match (self.status, code) {
            (Status::Exited, Some(code)) => return Ending::Exited(u32::try_from(code).unwrap_or(255)),
            // The log does not name the signal.
            (Status::Signalled, _) => {
                return Ending::Signalled { signal: "unknown".to_owned(), core: Core::None };
            }
            _ => {}
        }
        if let Some(refusal) = self.refusal.clone().filter(|_| self.phase < Phase::Authenticate) {
            let Refusal { reason, message, advice } = refusal;
            let (phase, remote) = (Phase::Identity, self.remote());
            return Ending::Failed(Failure { phase, reason, detail: message, advice: Some(advice), remote });
        }
        let refused = self.reason == Some(Reason::ChannelRefused);
        let ran = self.remote() != Remote::NotStarted;
        let reason = match (self.reason, signal) {
            (Some(reason), _) => reason,
            (None, Some(_)) => Reason::LocalError,
            (None, None) if ran => Reason::NoExitStatus,
            (None, None) => Reason::ProtocolError,
        };
        let detail = self.detail.clone().unwrap_or_else(|| match (code, signal) {
            (_, Some(signal)) => format!("ssh was ended by signal {signal}"),
            (Some(code), _) => format!("ssh ended with {code} and did not say why"),
            (None, None) => "ssh ended".to_owned(),
        });
        let phase = if refused { Phase::Start } else { self.phase };
        let remote = self.remote();
        let refused = self.refused.as_ref().filter(|_| is_identity(reason));
        let advice =
            refused.map(|name| format!("penstock host why {name} shows what is known of it, and from where"));
        Ending::Failed(Failure { phase, reason, detail, advice, remote })
    }

    /// State of the remote process after `ssh` ended and its log was read to the end. `ssh` logs the command before it
    /// sends the command. Without any log line the state is unknown.
    #[must_use]
    pub fn remote(&self) -> Remote {
        match self.status {
            Status::Exited | Status::Signalled => Remote::Ended,
            Status::None if self.reason == Some(Reason::ChannelRefused) => Remote::NotStarted,
            Status::None if self.phase >= Phase::Run || self.lines == 0 => Remote::MayHaveRun,
            Status::None => Remote::NotStarted,
        }
    }

    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }
}

fn shown(line: &str) -> String {
    escaped(line, 600)
}

/// Result of a program that replaces `ssh`: only its exit status is known.
#[must_use]
pub fn of_substitute(code: Option<i32>, signal: Option<i32>) -> Ending {
    let failed = |detail: String| {
        Ending::Failed(Failure {
            phase: Phase::Run,
            reason: Reason::NoExitStatus,
            detail,
            advice: None,
            remote: Remote::MayHaveRun,
        })
    };
    match (code, signal) {
        (Some(255), _) => failed(UNCLEAR_255.to_owned()),
        (Some(code), _) => Ending::Exited(u32::try_from(code).unwrap_or(255)),
        (None, signal) => failed(format!("{BY_SIGNAL}{}", signal.unwrap_or_default())),
    }
}

/// True if `failure` is the result of [`of_substitute`] for status 255.
#[must_use]
pub fn is_unclear_255(failure: &Failure) -> bool {
    failure.reason == Reason::NoExitStatus && failure.detail == UNCLEAR_255
}

/// Signal that ended a program in place of `ssh`, if `failure` is a result of [`of_substitute`].
#[must_use]
pub fn signal_of_substitute(failure: &Failure) -> Option<i32> {
    failure.detail.strip_prefix(BY_SIGNAL).filter(|_| failure.reason == Reason::NoExitStatus)?.parse().ok()
}

/// `ssh`, or the program in its place, could not be started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unstarted {
    pub program: String,
    /// Error number; 0 if there is none.
    pub errno: i32,
    pub words: String,
}

impl Unstarted {
    /// Failure of the host. `scarce` says if a resource of this machine was short, which can change.
    #[must_use]
    pub fn failure(&self, scarce: ResourceShortage) -> Failure {
        let Self { program, errno, words } = self;
        Failure {
            phase: Phase::Resolve,
            reason: match scarce {
                ResourceShortage::Yes => Reason::OutOfResources,
                ResourceShortage::No => Reason::BadConfiguration,
            },
            detail: format!("{CANNOT_START}{program}: {words}{OS_ERROR}{errno})"),
            advice: None,
            remote: Remote::NotStarted,
        }
    }

    #[must_use]
    pub fn of(failure: &Failure) -> Option<Self> {
        let (text, errno) =
            failure.detail.strip_prefix(CANNOT_START)?.strip_suffix(')')?.rsplit_once(OS_ERROR)?;
        let (program, words) = text.rsplit_once(": ")?;
        let errno = errno.parse().ok().filter(|_| failure.phase == Phase::Resolve)?;
        Some(Self { program: program.to_owned(), errno, words: words.to_owned() })
    }
}

/// Lack of descriptors, memory or processes on this machine as the cause of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResourceShortage {
    Yes,
    /// The error is permanent.
    No,
}

const UNCLEAR_255: &str = "exit code 255: ssh itself failed, or the command exited with 255";
const BY_SIGNAL: &str = "ssh was ended by signal ";
const CANNOT_START: &str = "cannot start ";
const OS_ERROR: &str = " (os error ";
const LONGEST: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn after(log: &str, code: i32) -> (Phase, Ending) {
        let mut told = Log::default();
        for half in log.as_bytes().chunks(7) {
            told.feed(half);
        }
        (told.phase(), told.ending(Some(code), None))
    }

    const UP: &str = "debug1: Connecting to h [::1] port 22.\ndebug1: Connection established.\n\
        debug1: SSH2_MSG_NEWKEYS received\nAuthenticated to h\ndebug1: Entering interactive session.\n";

    #[test]
    fn status_of_a_command_is_told_from_a_failure_of_ssh_with_the_same_number() {
        let ran = format!(
            "{UP}debug1: Sending command: x\ndebug1: client_input_channel_req: channel 0 rtype exit-status reply 0\n"
        );
        assert_eq!(after(&ran, 255).1, Ending::Exited(255));
        // A server can send these texts before its version, and so before its host key is verified.
        for said in [
            "rtype exit-status",
            "rtype exit-signal",
            "client_input_channel_req: channel 0 rtype exit-status",
        ] {
            let forged = format!(
                "debug1: Connecting to h [::1] port 22.\ndebug1: Connection established.\n\
                 debug1: kex_exchange_identification: banner line 0: {said}\n\
                 No ED25519 host key is known for h and you have requested strict checking.\n"
            );
            let Ending::Failed(failure) = after(&forged, 255).1 else { panic!("{said}") };
            assert_eq!(failure.reason, Reason::UnknownHost, "{said}");
        }
        let lost = format!("{UP}debug1: Sending command: x\nclient_loop: send disconnect: Broken pipe\n");
        let Ending::Failed(failure) = after(&lost, 255).1 else { panic!() };
        assert_eq!((failure.reason, failure.remote), (Reason::ConnectionLost, Remote::MayHaveRun));
    }

    #[test]
    fn what_is_refused_after_the_command_was_sent_does_not_unsend_it() {
        for words in ["channel 3: open failed: administratively prohibited: open failed", "open failed"] {
            let late = format!("{UP}debug1: Sending command: x\n{words}\nConnection closed\n");
            let Ending::Failed(failure) = after(&late, 255).1 else { panic!() };
            assert_eq!((failure.phase, failure.remote), (Phase::Run, Remote::MayHaveRun), "{words}");
        }
        for log in [
            format!("{UP}channel 0: open failed: administratively prohibited: open failed\n"),
            format!("{UP}debug1: Sending command: x\nexec request failed on channel 0\n"),
        ] {
            let Ending::Failed(failure) = after(&log, 255).1 else { panic!() };
            assert_eq!(
                (failure.reason, failure.remote),
                (Reason::ChannelRefused, Remote::NotStarted),
                "{log}"
            );
        }
    }

    #[test]
    fn command_over_the_connection_of_another_ssh_may_have_run() {
        let log = "debug1: Reading configuration data /etc/ssh/ssh_config\ndebug1: auto-mux: Trying existing master at 'x'\n\
            debug1: mux_client_request_session: master session id: 2\n";
        let Ending::Failed(failure) = after(log, 255).1 else { panic!() };
        assert_eq!((failure.phase, failure.remote), (Phase::Run, Remote::MayHaveRun));
    }

    #[test]
    fn silent_log_proves_nothing() {
        let Ending::Failed(failure) = after("", 255).1 else { panic!() };
        assert_eq!(failure.remote, Remote::MayHaveRun);
    }

    #[test]
    fn refusals_before_the_command_are_named_with_their_phase() {
        for (log, reason, phase) in [
            (
                "ssh: Could not resolve hostname nohost: Name or service not known\n",
                Reason::NoAddress,
                Phase::Resolve,
            ),
            (
                "debug1: Connecting to h [::1] port 1.\nssh: connect to host h port 1: Connection refused\n",
                Reason::ConnectionRefused,
                Phase::Connect,
            ),
            (
                "debug1: Connection established.\nkex_exchange_identification: Connection closed by remote host\n",
                Reason::ClosedByServer,
                Phase::Identity,
            ),
            (
                "debug1: Connection established.\nNo ED25519 host key is known for h and you have requested strict checking.\nHost key verification failed.\n",
                Reason::UnknownHost,
                Phase::Identity,
            ),
            (
                "debug1: SSH2_MSG_NEWKEYS received\nroot@h: Permission denied (publickey).\n",
                Reason::PermissionDenied,
                Phase::Authenticate,
            ),
        ] {
            let Ending::Failed(failure) = after(log, 255).1 else { panic!("{log}") };
            assert_eq!((failure.reason, failure.phase, failure.remote), (reason, phase, Remote::NotStarted));
        }
    }

    #[test]
    fn changed_key_is_told_by_the_lines_that_name_host_and_key() {
        let log = "debug1: Connection established.\n@@@@@@@@@@@@\n@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\n\
            @@@@@@@@@@@@\nIT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!\n\
            The fingerprint for the ED25519 key sent by the remote host is\nSHA256:abc+/d.\nPlease contact your system administrator.\n\
            Offending ED25519 key in /known:1\n\
            Host key for [h]:2222 has changed and you have requested strict checking.\nHost key verification failed.\n";
        let Ending::Failed(failure) = after(log, 255).1 else { panic!() };
        assert_eq!(failure.reason, Reason::KeyChanged);
        assert_eq!(
            failure.detail,
            "Host key for [h]:2222 has changed and you have requested strict checking; it showed SHA256:abc+/d"
        );
        assert!(failure.advice.is_some_and(|advice| advice.starts_with("penstock host why h shows")));
    }

    #[test]
    fn what_known_hosts_says_to_an_engine_is_the_reason_and_nothing_else_is_taken() {
        let refusal = Refusal {
            reason: Reason::WrongHost,
            message: "it showed the key of db1, not of web2; nothing was sent".to_owned(),
            advice: "look".to_owned(),
        };
        let told = refusal.said(StderrReader::Engine);
        for (before, after) in [("", ""), ("a\n\n", "  b\nc"), ("penstock: other: x\n", "\n")] {
            let mut said = format!("{before}{told}{after}").into_bytes();
            assert_eq!(Refusal::take(&mut said), Some(refusal.clone()));
            assert_eq!(String::from_utf8(said).unwrap(), format!("{before}{after}"));
        }
        let mut said = refusal.said(StderrReader::Person).into_bytes();
        assert_eq!((Refusal::take(&mut said), said.is_empty()), (None, false));
        let mut cut = told.as_bytes()[..told.len() - 6].to_vec();
        assert_eq!(Refusal::take(&mut cut).map(|it| it.advice), Some(String::new()));
        let log = "debug1: Connection established.\nNo ED25519 host key is known for h and you have requested strict checking.\n";
        for (more, reason) in
            [("", Reason::WrongHost), ("debug1: SSH2_MSG_NEWKEYS received\n", Reason::UnknownHost)]
        {
            let mut told = Log::default();
            told.feed(format!("{log}{more}").as_bytes());
            told.refuse(refusal.clone());
            let Ending::Failed(failure) = told.ending(Some(255), None) else { panic!() };
            assert_eq!((failure.reason, failure.remote), (reason, Remote::NotStarted));
        }
    }

    #[test]
    fn failures_of_a_program_in_place_of_ssh_can_be_read_back() {
        let Ending::Failed(killed) = of_substitute(None, Some(9)) else { panic!() };
        assert_eq!((signal_of_substitute(&killed), is_unclear_255(&killed)), (Some(9), false));
        let Ending::Failed(unclear) = of_substitute(Some(255), None) else { panic!() };
        assert_eq!((signal_of_substitute(&unclear), is_unclear_255(&unclear)), (None, true));
        for program in ["/", "a: b (os error 1)"] {
            let unstarted =
                Unstarted { program: program.to_owned(), errno: 13, words: "Permission denied".to_owned() };
            let failure = unstarted.failure(ResourceShortage::No);
            assert_eq!(failure.reason, Reason::BadConfiguration);
            assert_eq!(Unstarted::of(&failure), Some(unstarted));
        }
        assert_eq!(Unstarted::of(&killed), None);
    }
}
