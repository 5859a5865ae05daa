//! Clients and servers of GNU SASL and Cyrus SASL against ours, and what their servers do with a token that ours refuses. The
//! table is in docs/control-access.md, and `table.rs` writes it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};

use access::sasl::gs2::{BindingFlag, Header, TokenForm};
use access::sasl::krb5::{First, INITIATOR_FLAGS, application_data};
use access::sasl::scram::Client;
use base64ct::{Base64, Encoding};
use sys::gssapi::{Library, Progress};
use testing::server::Lines;
use testing::{eventually, secs, tools};

use super::kdc::Realm;
use super::kerberos;
use super::peer::Peer;

/// A program that speaks line by line.
pub(crate) struct Program {
    child: Child,
    input: ChildStdin,
    lines: Lines,
    /// Its standard error.
    notes: Lines,
    seen: usize,
}

impl Program {
    pub(crate) fn start(command: &mut Command) -> Self {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = Lines::follow(child.stdout.take().unwrap());
        let notes = Lines::follow(child.stderr.take().unwrap());
        Self { input: child.stdin.take().unwrap(), lines, notes, child, seen: 0 }
    }

    pub(crate) fn say(&mut self, line: &str) {
        // It may have ended: then the next line is missed.
        let _ = writeln!(self.input, "{line}").and_then(|()| self.input.flush());
    }

    /// The rest of the next line with this mark in it.
    #[track_caller]
    pub(crate) fn hear(&mut self, mark: &str) -> String {
        let (at, rest) = eventually(&format!("{mark:?} in {:?}", self.lines.all()), secs(20), || {
            let all = self.lines.all();
            let lines = all.iter().enumerate().skip(self.seen);
            lines.into_iter().find_map(|(at, line)| Some((at, line.split_once(mark)?.1.to_owned())))
        });
        self.seen = at + 1;
        rest
    }
}

impl Program {
    /// Whether the first of these marks comes, and not the second, on whichever of its outputs.
    #[track_caller]
    pub(crate) fn ends_well(&self, good: &str, bad: &str) -> bool {
        let all = || [self.lines.all(), self.notes.all()].concat();
        eventually(&format!("{good:?} or {bad:?} in {:?}", all()), secs(20), || {
            let all = all();
            let has = |mark: &str| all.iter().any(|line| line.contains(mark));
            (has(good) || has(bad)).then(|| has(good))
        })
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Our initiator, in a process of its own with the tickets of a user.
pub(crate) fn initiator(realm: &Realm, service: &str, header: &str) -> Program {
    let mut command = Command::new(std::env::current_exe().unwrap());
    realm.as_user(&mut command, "ann");
    command.args(["--exact", "matrix::ours", "--ignored", "--nocapture"]);
    command.env("PENSTOCK_TEST_SERVICE", service).env("PENSTOCK_TEST_AUTHZID", header);
    Program::start(&mut command)
}

#[test]
#[ignore = "a part of other tests, which run it in a process with tickets"]
fn ours() {
    let authzid = std::env::var("PENSTOCK_TEST_AUTHZID").ok().filter(|name| !name.is_empty());
    let header = Header { form: TokenForm::Standard, flag: BindingFlag::Cannot, authzid };
    let service = std::env::var("PENSTOCK_TEST_SERVICE").unwrap();
    let library = Library::load().unwrap();
    let data = application_data(&header, None);
    let mut initiator = library.initiate(&service, INITIATOR_FLAGS, &data).unwrap();
    let first = initiator.step(None).unwrap();
    println!("\nFIRST {}", Base64::encode_string(&First::encode(&header, &first.token).unwrap()));
    let mut answer = String::new();
    BufReader::new(std::io::stdin()).read_line(&mut answer).unwrap();
    let last = initiator.step(Some(&Base64::decode_vec(answer.trim()).unwrap())).unwrap();
    println!("\nLAST {}", last.progress == Progress::Complete);
}

pub(crate) fn gsasl_server(realm: &Realm) -> Program {
    let mut command = Command::new(tools::program("stdbuf"));
    realm.as_user(&mut command, "ann");
    command.env("KRB5_KTNAME", realm.file("keytab")).arg("-oL").arg(tools::program("gsasl"));
    command.args(["--server", "--mechanism", "GS2-KRB5", "--service", "host", "--hostname", "localhost"]);
    Program::start(&mut command)
}

#[test]
fn our_initiator_logs_in_at_gnu_sasl() {
    let realm = Realm::start();
    let mut ours = initiator(&realm, "host@localhost", "ann");
    let mut gsasl = gsasl_server(&realm);
    gsasl.say(&ours.hear("FIRST "));
    gsasl.say("y");
    gsasl.hear("Display Name: ann@TEST.LOCAL");
    ours.say(&gsasl.hear("(y/n) "));
    assert_eq!(ours.hear("LAST "), "true");
    gsasl.say("");
    gsasl.notes.wait_for("client trusted", secs(20));
}

#[test]
fn our_initiator_logs_in_at_cyrus_sasl() {
    let realm = Realm::start();
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    realm.service(&format!("imap/{host}"));
    let mut ours = initiator(&realm, &format!("imap@{host}"), "");
    let mut command = Command::new(tools::program("stdbuf"));
    realm.as_user(&mut command, "ann");
    command.env("KRB5_KTNAME", realm.file("keytab")).arg("-oL").arg(tools::program("sasl-sample-server"));
    let mut cyrus = Program::start(command.args(["-s", "imap", "-m", "GS2-KRB5"]));
    cyrus.hear("S: ");
    let first = Base64::decode_vec(&ours.hear("FIRST ")).unwrap();
    cyrus.say(&format!("C: {}", Base64::encode_string(&[b"GS2-KRB5\0", &first[..]].concat())));
    ours.say(&cyrus.hear("S: "));
    assert_eq!(ours.hear("LAST "), "true");
    cyrus.say("C: ");
    cyrus.hear("Negotiation complete");
}

#[test]
fn the_client_of_cyrus_sasl_logs_in_here() {
    let realm = Realm::start();
    let site = kerberos::site(&realm, "");
    let mut command = Command::new(tools::program("stdbuf"));
    realm.as_user(&mut command, "ann");
    command.arg("-oL").arg(tools::program("sasl-sample-client"));
    command.args(["-s", "host", "-n", "localhost", "-m", "GS2-KRB5", "-a", "ann", "-u", "ann"]);
    let mut cyrus = Program::start(&mut command);
    cyrus.say(&format!("S: {}", Base64::encode_string(b"GS2-KRB5")));
    let first = Base64::decode_vec(&cyrus.hear("C: ")).unwrap();
    let first = first.strip_prefix(b"GS2-KRB5\0").unwrap();
    let mut peer = Peer::connect(&site, None);
    let answer = peer.challenge(&format!("AUTH GS2-KRB5 {}", Base64::encode_string(first))).unwrap();
    cyrus.say(&format!("S: {}", Base64::encode_string(&answer)));
    cyrus.hear("C: ");
    assert_eq!(peer.ask(""), "235 2.7.0 principal:ann@TEST.LOCAL, role admin");
}

#[test]
fn our_client_logs_in_by_scram_at_gnu_sasl() {
    let mut command = Command::new(tools::program("stdbuf"));
    command.arg("-oL").arg(tools::program("gsasl"));
    command.args(["--server", "--mechanism", "SCRAM-SHA-256", "--password", "pencil"]);
    let mut gsasl = Program::start(&mut command);
    let client = Client::new("ann", None, BindingFlag::Cannot, b"", "abcdefgh").unwrap();
    gsasl.hear("SCRAM-SHA-256");
    // It has nothing to say first.
    assert_eq!(gsasl.hear(""), "");
    gsasl.say(&Base64::encode_string(client.first.as_bytes()));
    let challenge = Base64::decode_vec(&gsasl.hear("")).unwrap();
    let awaiting = client.respond(&challenge, "pencil").unwrap();
    gsasl.say(&Base64::encode_string(awaiting.last.as_bytes()));
    awaiting.verify(&Base64::decode_vec(&gsasl.hear("")).unwrap()).unwrap();
}

/// Beside what ours does with it: `a_token_without_bindings_behind_an_injected_name_is_refused`.
#[test]
fn gnu_sasl_accepts_a_token_without_bindings_behind_an_injected_name() {
    let realm = Realm::start();
    let token = realm.token("ann", "host@localhost", None);
    let header =
        Header { form: TokenForm::Standard, flag: BindingFlag::Cannot, authzid: Some("root".into()) };
    let mut gsasl = gsasl_server(&realm);
    gsasl.say(&Base64::encode_string(&First::encode(&header, &token).unwrap()));
    gsasl.say("y");
    gsasl.hear("Authzid: root");
    gsasl.hear("(y/n) ");
    gsasl.say("");
    gsasl.notes.wait_for("client trusted", secs(20));
}
