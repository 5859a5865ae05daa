//! Keywords of ssh_config(5) and the format of their arguments.

use super::algorithms::List;
use super::forward::ForwardKind;

/// Format of the arguments of a keyword.
#[derive(Debug, Clone, Copy)]
pub(super) enum Shape {
    Switch,
    /// One word of a list; the second of each pair is the form for output.
    OneOf(&'static [(&'static str, &'static str)]),
    /// Duration; `none` leaves the setting unset.
    Time,
    Number,
    /// One word with any content.
    Text,
    Command,
    /// Words; the first line with words counts. `none` must be the only word.
    Words,
    /// Words that add up over lines: `IdentityFile`, `CertificateFile`.
    File,
    Algorithms(List),
    Port,
    /// Size, optionally followed by a duration.
    Rekey,
    Jump,
    Forward(ForwardKind),
    /// Patterns of names of environment variables.
    SendEnv,
    SetEnv,
    /// Yes, no, or the path of a socket.
    ForwardAgent,
    IdentityAgent,
    /// Yes, no, ask, confirm, or a duration.
    AddKeys,
    /// Yes, no, or a duration.
    Persist,
    TunnelDevice,
    Mask,
    Escape,
    /// One or two quality-of-service values.
    Quality,
    PermitRemoteOpen,
    Domains,
    Cnames,
    /// Any arguments, which are ignored.
    Anything,
}

macro_rules! keywords {
    ($($keyword:ident $name:literal $shape:expr, $default:expr;)*) => {
        /// Keyword of ssh_config(5) that OpenSSH supports.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs, reason = "each is named as in ssh_config(5), which explains it")]
        pub enum Keyword { $($keyword),* }

        impl Keyword {
            /// All keywords in alphabetical order.
            pub(super) const ALL: &[Self] = &[$(Self::$keyword),*];

            /// Keyword in lower case, as `ssh -G` writes it.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $(Self::$keyword => $name),* }
            }

            pub(super) fn shape(self) -> Shape {
                match self { $(Self::$keyword => $shape),* }
            }

            /// Default, as `ssh -G` writes it; `None` if there is no simple default.
            pub(super) fn default(self) -> Option<&'static str> {
                match self { $(Self::$keyword => $default),* }
            }
        }
    };
}

keywords! {
    AddKeysToAgent "addkeystoagent" Shape::AddKeys, Some("false");
    AddressFamily "addressfamily" Shape::OneOf(FAMILY), Some("any");
    BatchMode "batchmode" Shape::Switch, Some("no");
    BindAddress "bindaddress" Shape::Text, None;
    BindInterface "bindinterface" Shape::Text, None;
    CanonicalDomains "canonicaldomains" Shape::Domains, Some("none");
    CanonicalizeFallbackLocal "canonicalizefallbacklocal" Shape::Switch, Some("yes");
    CanonicalizeHostname "canonicalizehostname" Shape::OneOf(CANONICALIZE), Some("false");
    CanonicalizeMaxDots "canonicalizemaxdots" Shape::Number, Some("1");
    CanonicalizePermittedCnames "canonicalizepermittedcnames" Shape::Cnames, Some("none");
    CaSignatureAlgorithms "casignaturealgorithms" Shape::Algorithms(List::Signatures), None;
    CertificateFile "certificatefile" Shape::File, None;
    ChannelTimeout "channeltimeout" Shape::Words, None;
    CheckHostIp "checkhostip" Shape::Switch, Some("no");
    Ciphers "ciphers" Shape::Algorithms(List::Ciphers), None;
    ClearAllForwardings "clearallforwardings" Shape::Switch, Some("no");
    Compression "compression" Shape::OneOf(&[("yes", "yes"), ("no", "no")]), Some("no");
    ConnectionAttempts "connectionattempts" Shape::Number, Some("1");
    ConnectTimeout "connecttimeout" Shape::Time, Some("none");
    ControlMaster "controlmaster" Shape::OneOf(CONTROL_MASTER), Some("false");
    ControlPath "controlpath" Shape::Text, None;
    ControlPersist "controlpersist" Shape::Persist, Some("no");
    DynamicForward "dynamicforward" Shape::Forward(ForwardKind::Dynamic), None;
    EnableEscapeCommandline "enableescapecommandline" Shape::Switch, Some("no");
    EnableSshKeysign "enablesshkeysign" Shape::Switch, Some("no");
    EscapeChar "escapechar" Shape::Escape, None;
    ExitOnForwardFailure "exitonforwardfailure" Shape::Switch, Some("no");
    FingerprintHash "fingerprinthash" Shape::OneOf(HASH), Some("SHA256");
    ForkAfterAuthentication "forkafterauthentication" Shape::Switch, Some("no");
    ForwardAgent "forwardagent" Shape::ForwardAgent, Some("no");
    ForwardAgentSocket "forwardagent socket" Shape::Text, None;
    ForwardX11 "forwardx11" Shape::Switch, Some("no");
    ForwardX11Timeout "forwardx11timeout" Shape::Time, Some("1200");
    ForwardX11Trusted "forwardx11trusted" Shape::Switch, None;
    GatewayPorts "gatewayports" Shape::Switch, Some("no");
    GlobalKnownHostsFile "globalknownhostsfile" Shape::Words, None;
    GssApiAuthentication "gssapiauthentication" Shape::Switch, None;
    GssApiClientIdentity "gssapiclientidentity" Shape::Text, None;
    GssApiDelegateCredentials "gssapidelegatecredentials" Shape::Switch, None;
    GssApiKexAlgorithms "gssapikexalgorithms" Shape::Text, None;
    GssApiKeyExchange "gssapikeyexchange" Shape::Switch, None;
    GssApiRenewalForcesRekey "gssapirenewalforcesrekey" Shape::Switch, None;
    GssApiServerIdentity "gssapiserveridentity" Shape::Text, None;
    GssApiTrustDns "gssapitrustdns" Shape::Switch, None;
    HashKnownHosts "hashknownhosts" Shape::Switch, Some("no");
    HostbasedAcceptedAlgorithms "hostbasedacceptedalgorithms" Shape::Algorithms(List::Keys), None;
    HostbasedAuthentication "hostbasedauthentication" Shape::Switch, Some("no");
    HostKeyAlgorithms "hostkeyalgorithms" Shape::Algorithms(List::Keys), None;
    HostKeyAlias "hostkeyalias" Shape::Text, None;
    HostName "hostname" Shape::Text, None;
    IdentitiesOnly "identitiesonly" Shape::Switch, Some("no");
    IdentityAgent "identityagent" Shape::IdentityAgent, None;
    IdentityFile "identityfile" Shape::File, None;
    IgnoreUnknown "ignoreunknown" Shape::Text, None;
    IpQos "ipqos" Shape::Quality, None;
    KbdInteractiveAuthentication "kbdinteractiveauthentication" Shape::Switch, Some("yes");
    KbdInteractiveDevices "kbdinteractivedevices" Shape::Text, None;
    KexAlgorithms "kexalgorithms" Shape::Algorithms(List::Kex), None;
    KnownHostsCommand "knownhostscommand" Shape::Command, None;
    LocalCommand "localcommand" Shape::Command, None;
    LocalForward "localforward" Shape::Forward(ForwardKind::Local), None;
    LogLevel "loglevel" Shape::OneOf(LOG_LEVEL), Some("INFO");
    LogVerbose "logverbose" Shape::Words, None;
    Macs "macs" Shape::Algorithms(List::Macs), None;
    NoHostAuthenticationForLocalhost "nohostauthenticationforlocalhost" Shape::Switch, Some("no");
    NumberOfPasswordPrompts "numberofpasswordprompts" Shape::Number, Some("3");
    ObscureKeystrokeTiming "obscurekeystroketiming" Shape::Anything, None;
    PasswordAuthentication "passwordauthentication" Shape::Switch, Some("yes");
    PermitLocalCommand "permitlocalcommand" Shape::Switch, Some("no");
    PermitRemoteOpen "permitremoteopen" Shape::PermitRemoteOpen, Some("any");
    Pkcs11Provider "pkcs11provider" Shape::Text, None;
    Port "port" Shape::Port, Some("22");
    PreferredAuthentications "preferredauthentications" Shape::Text, None;
    ProxyCommand "proxycommand" Shape::Command, None;
    ProxyJump "proxyjump" Shape::Jump, None;
    ProxyUseFdpass "proxyusefdpass" Shape::Switch, Some("no");
    PubkeyAcceptedAlgorithms "pubkeyacceptedalgorithms" Shape::Algorithms(List::Keys), None;
    PubkeyAuthentication "pubkeyauthentication" Shape::OneOf(PUBKEY), Some("true");
    RefuseConnection "refuseconnection" Shape::Text, None;
    RekeyLimit "rekeylimit" Shape::Rekey, None;
    RekeyInterval "rekeylimit time" Shape::Time, None;
    RemoteCommand "remotecommand" Shape::Command, None;
    RemoteForward "remoteforward" Shape::Forward(ForwardKind::Remote), None;
    RequestTty "requesttty" Shape::OneOf(TTY), Some("auto");
    RequiredRsaSize "requiredrsasize" Shape::Number, Some("1024");
    RevokedHostKeys "revokedhostkeys" Shape::Text, None;
    SecurityKeyProvider "securitykeyprovider" Shape::Text, Some("internal");
    SendEnv "sendenv" Shape::SendEnv, None;
    ServerAliveCountMax "serveralivecountmax" Shape::Number, Some("3");
    ServerAliveInterval "serveraliveinterval" Shape::Time, Some("0");
    SessionType "sessiontype" Shape::OneOf(SESSION), Some("default");
    SetEnv "setenv" Shape::SetEnv, None;
    StdinNull "stdinnull" Shape::Switch, Some("no");
    StreamLocalBindMask "streamlocalbindmask" Shape::Mask, Some("0177");
    StreamLocalBindUnlink "streamlocalbindunlink" Shape::Switch, Some("no");
    StrictHostKeyChecking "stricthostkeychecking" Shape::OneOf(STRICT), Some("ask");
    SyslogFacility "syslogfacility" Shape::OneOf(FACILITY), Some("USER");
    Tag "tag" Shape::Text, None;
    TcpKeepAlive "tcpkeepalive" Shape::Switch, Some("yes");
    Tunnel "tunnel" Shape::OneOf(TUNNEL), Some("false");
    TunnelDevice "tunneldevice" Shape::TunnelDevice, Some("any:any");
    UpdateHostKeys "updatehostkeys" Shape::OneOf(YES_NO_ASK), None;
    User "user" Shape::Text, None;
    UserKnownHostsFile "userknownhostsfile" Shape::Words, None;
    VerifyHostKeyDns "verifyhostkeydns" Shape::OneOf(YES_NO_ASK), Some("false");
    VersionAddendum "versionaddendum" Shape::Anything, None;
    VisualHostKey "visualhostkey" Shape::Switch, Some("no");
    WarnWeakCrypto "warnweakcrypto" Shape::Anything, None;
    XAuthLocation "xauthlocation" Shape::Text, None;
}

/// Meaning of the first word of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Meaning {
    Host,
    Match,
    Include,
    Set(Keyword),
    /// OpenSSH ignores the keyword, which had a meaning in earlier versions.
    Deprecated,
    /// OpenSSH removed the feature: it prints a warning and continues.
    Removed,
    /// Unknown to OpenSSH and to Penstock.
    Unknown,
}

/// Meaning of the first word of a line, in lower case.
pub(super) fn meaning(word: &str) -> Meaning {
    let set = match word {
        "host" => return Meaning::Host,
        "match" => return Meaning::Match,
        "include" => return Meaning::Include,
        "challengeresponseauthentication" | "skeyauthentication" | "tisauthentication" => {
            Keyword::KbdInteractiveAuthentication
        }
        "dsaauthentication" => Keyword::PubkeyAuthentication,
        "identityfile2" => Keyword::IdentityFile,
        "keepalive" => Keyword::TcpKeepAlive,
        "smartcarddevice" => Keyword::Pkcs11Provider,
        "hostbasedkeytypes" => Keyword::HostbasedAcceptedAlgorithms,
        "pubkeyacceptedkeytypes" => Keyword::PubkeyAcceptedAlgorithms,
        // Names in Debian.
        "protocolkeepalives" => Keyword::ServerAliveInterval,
        "setuptimeout" => Keyword::ServerAliveInterval,
        "protocol"
        | "cipher"
        | "fallbacktorsh"
        | "globalknownhostsfile2"
        | "rhostsauthentication"
        | "userknownhostsfile2"
        | "useroaming"
        | "usersh"
        | "useprivilegedport" => return Meaning::Deprecated,
        "afstokenpassing"
        | "kerberosauthentication"
        | "kerberostgtpassing"
        | "rsaauthentication"
        | "rhostsrsaauthentication"
        | "compressionlevel" => return Meaning::Removed,
        word => match Keyword::ALL.iter().find(|keyword| keyword.name() == word) {
            Some(keyword) => *keyword,
            None => return Meaning::Unknown,
        },
    };
    Meaning::Set(set)
}

/// Known keyword that is most similar to an unknown word.
pub(super) fn nearest(word: &str) -> Option<&'static str> {
    let blocks = ["host", "match", "include"];
    text::nearest::nearest(word, Keyword::ALL.iter().map(|keyword| keyword.name()).chain(blocks))
}

const YES: (&str, &str) = ("yes", "true");
const TRUE: (&str, &str) = ("true", "true");
const NO: (&str, &str) = ("no", "false");
const FALSE: (&str, &str) = ("false", "false");
const ASK: (&str, &str) = ("ask", "ask");
const FAMILY: &[(&str, &str)] = &[("any", "any"), ("inet", "inet"), ("inet6", "inet6")];
const CANONICALIZE: &[(&str, &str)] = &[YES, TRUE, NO, FALSE, ("always", "always")];
const CONTROL_MASTER: &[(&str, &str)] =
    &[YES, TRUE, NO, FALSE, ("auto", "auto"), ASK, ("autoask", "autoask")];
const HASH: &[(&str, &str)] =
    &[("md5", "MD5"), ("sha1", "SHA1"), ("sha256", "SHA256"), ("sha384", "SHA384"), ("sha512", "SHA512")];
const LOG_LEVEL: &[(&str, &str)] = &[
    ("quiet", "QUIET"),
    ("fatal", "FATAL"),
    ("error", "ERROR"),
    ("info", "INFO"),
    ("verbose", "VERBOSE"),
    ("debug", "DEBUG"),
    ("debug1", "DEBUG"),
    ("debug2", "DEBUG2"),
    ("debug3", "DEBUG3"),
];
const PUBKEY: &[(&str, &str)] = &[YES, TRUE, NO, FALSE, ("unbound", "unbound"), ("host-bound", "host-bound")];
const TTY: &[(&str, &str)] = &[YES, TRUE, NO, FALSE, ("force", "force"), ("auto", "auto")];
const SESSION: &[(&str, &str)] = &[("none", "none"), ("subsystem", "subsystem"), ("default", "default")];
const STRICT: &[(&str, &str)] = &[YES, TRUE, NO, FALSE, ASK, ("off", "false"), ("accept-new", "accept-new")];
const TUNNEL: &[(&str, &str)] =
    &[("ethernet", "ethernet"), ("point-to-point", POINT), ("yes", POINT), ("true", POINT), NO, FALSE];
const POINT: &str = "point-to-point";
const YES_NO_ASK: &[(&str, &str)] = &[YES, TRUE, NO, FALSE, ASK];
const FACILITY: &[(&str, &str)] = &[
    ("daemon", "DAEMON"),
    ("user", "USER"),
    ("auth", "AUTH"),
    ("authpriv", "AUTHPRIV"),
    ("local0", "LOCAL0"),
    ("local1", "LOCAL1"),
    ("local2", "LOCAL2"),
    ("local3", "LOCAL3"),
    ("local4", "LOCAL4"),
    ("local5", "LOCAL5"),
    ("local6", "LOCAL6"),
    ("local7", "LOCAL7"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_the_keyword_that_was_meant() {
        assert_eq!(nearest("hostnme"), Some("hostname"));
        assert_eq!(nearest("prot"), Some("port"));
        assert_eq!(nearest("prxyjump"), Some("proxyjump"));
        assert_eq!(nearest("colour"), None);
    }

    #[test]
    fn parts_of_a_keyword_are_no_keywords_themselves() {
        assert_eq!(meaning("rekeylimit"), Meaning::Set(Keyword::RekeyLimit));
        assert_eq!(meaning("identityfile2"), Meaning::Set(Keyword::IdentityFile));
        assert_eq!(meaning("cipher"), Meaning::Deprecated);
        assert_eq!(meaning("rsaauthentication"), Meaning::Removed);
    }
}
