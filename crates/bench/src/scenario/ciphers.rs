//! Cost of a cipher: one SSH session that transfers bytes, with OpenSSH and with our engine, and the AEAD alone.
//!
//! It replaces the usual loop `for c in ...; do dd | ssh -c $c host 'cat >/dev/null'; done` without its faults: the
//! session is open before the clock starts, client and server have a core each and are metered separately, the data are
//! not zeros, contestants run in turn, and the upper limit, the AEAD without a transport, is measured too.

use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

use nix::sys::stat::Mode;

use crate::agent::Agent;
use crate::contestant::{Contestant, Running};
use crate::context::{Context, Extent};
use crate::error::{Error, ErrorContext};
use crate::latency::Recorder;
use crate::limit::Limit;
use crate::load::Order;
use crate::load::aead::{Aead, Cipher, Work};
use crate::load::gauge::{Metered, Window};
use crate::load::pipe::{self, End, Pipe};
use crate::meter::Processes;
use crate::pairing::Pairing;
use crate::plan::{Group, Length, Plan, Scenario};
use crate::process::{self, Ending, Launch, Process};
use crate::sample::{Better, Metric, Sample, Scale};
use crate::target::sshd::{Programs, Sshd};
use crate::version;

#[derive(Debug)]
pub struct Ciphers;

impl Scenario for Ciphers {
    fn name(&self) -> &'static str {
        "ciphers"
    }

    fn question(&self) -> &'static str {
        "One SSH session: what does a GB cost with each cipher, for OpenSSH's client, our engine and the cipher alone?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let notes = NOTES.iter().map(|note| (*note).to_owned()).collect();
        let mut plan = Plan { notes, ..Plan::default() };
        let (programs, ssh) =
            match Programs::find().and_then(|it| Ok((it, process::find("ssh", "openssh-client")?))) {
                Ok(found) => found,
                Err(error) => {
                    plan.note_missing(error)?;
                    return Ok(plan);
                }
            };
        let client = client_ciphers(&ssh)?;
        let server = programs.ciphers(context)?;
        let both: Vec<_> = client.iter().filter(|cipher| server.contains(cipher)).cloned().collect();
        let refused: Vec<_> = client.iter().filter(|cipher| !server.contains(cipher)).cloned().collect();
        if !refused.is_empty() {
            plan.notes
                .push(format!("Refused by the server unless it is told otherwise: {}.", refused.join(", ")));
        }
        let site = Rc::new(Site { programs, ssh, ciphers: both.clone(), server: RefCell::default() });
        for end in [End::Read, End::Write] {
            for cipher in &both {
                plan.groups.push(stream(context, &site, cipher, end));
            }
        }
        plan.groups.push(connect(context, &site));
        Ok(plan)
    }
}

/// Returns the ciphers that OpenSSH's client supports.
fn client_ciphers(ssh: &Path) -> Result<Vec<String>, Error> {
    let output = std::process::Command::new(ssh).args(["-Q", "cipher"]).output();
    let output = output.doing("ask ssh for its ciphers (ssh -Q cipher)")?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

/// State shared by all groups: one server, started for the first contestant that needs it.
struct Site {
    programs: Programs,
    ssh: PathBuf,
    ciphers: Vec<String>,
    server: RefCell<std::rc::Weak<Server>>,
}

/// An SSH server and the file that it sends.
struct Server {
    sshd: Sshd,
    ring: PathBuf,
    /// Round-trip time to the server in seconds.
    round_trip: f64,
}

impl Site {
    /// Returns the server, starting it if needed. It ends when its last user is dropped.
    fn server(&self, context: &Context) -> Result<Rc<Server>, Error> {
        if let Some(server) = self.server.borrow().upgrade() {
            return Ok(server);
        }
        let sshd = self.programs.start(context, &self.ciphers)?;
        let ring = context.path("ring");
        pipe::write_ring(&ring).doing(format!("write {}", ring.display()))?;
        let round_trip = round_trip(sshd.address).doing("connect to sshd")?;
        let server = Rc::new(Server { sshd, ring, round_trip });
        self.server.replace(Rc::downgrade(&server));
        Ok(server)
    }
}

/// Measures the shortest of 20 TCP handshakes in seconds.
fn round_trip(address: SocketAddr) -> std::io::Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..20 {
        let begin = Instant::now();
        drop(TcpStream::connect(address)?);
        least = least.min(begin.elapsed().as_secs_f64());
    }
    Ok(least)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Openssh,
    Penstock,
}

impl Carrier {
    const ALL: [Carrier; 2] = [Carrier::Penstock, Carrier::Openssh];

    fn name(self) -> &'static str {
        match self {
            Carrier::Openssh => "openssh",
            Carrier::Penstock => "penstock",
        }
    }

    fn version(self, context: &Context, ssh: &Path) -> Option<String> {
        match self {
            Carrier::Openssh => version::of(ssh, &["-V"]),
            Carrier::Penstock => version::of(&context.program, &["--version"]),
        }
    }

    /// Size in bytes of the flow-control window that limits unacknowledged data.
    fn window(self, end: End) -> f64 {
        match (self, end) {
            (Carrier::Penstock, End::Read) => 16.0 * MIB,
            // Upload uses the server's window, download that of OpenSSH's client. Both are 2 MiB.
            (Carrier::Penstock, End::Write) | (Carrier::Openssh, _) => 2.0 * MIB,
        }
    }

    /// Builds the command line of the client.
    fn words(
        self,
        context: &Context,
        site: &Site,
        server: &Sshd,
        cipher: Option<&str>,
        command: &str,
    ) -> Vec<String> {
        let path = |path: &Path| path.display().to_string();
        let user = nix::unistd::User::from_uid(nix::unistd::geteuid()).ok().flatten();
        let user = user.map_or_else(|| "root".to_owned(), |user| user.name);
        let mut words = match self {
            Carrier::Openssh => vec![
                path(&site.ssh),
                "-F".to_owned(),
                "none".to_owned(),
                "-p".to_owned(),
                server.address.port().to_string(),
                "-i".to_owned(),
                path(&server.client_key),
                "-o".to_owned(),
                format!("UserKnownHostsFile={}", path(&server.known_hosts)),
                "-o".to_owned(),
                "IdentitiesOnly=yes".to_owned(),
                "-o".to_owned(),
                "IdentityAgent=none".to_owned(),
                "-o".to_owned(),
                "BatchMode=yes".to_owned(),
            ],
            Carrier::Penstock => vec![
                path(&context.program),
                "bench-ssh".to_owned(),
                "--address".to_owned(),
                server.address.to_string(),
                "--identity".to_owned(),
                path(&server.client_key),
                "--host-key".to_owned(),
                path(&server.host_key),
                "--user".to_owned(),
                user.clone(),
            ],
        };
        if let Some(cipher) = cipher {
            words.extend([
                if self == Carrier::Openssh { "-c" } else { "--cipher" }.to_owned(),
                cipher.to_owned(),
            ]);
        }
        if self == Carrier::Openssh {
            words.push(format!("{user}@{}", server.address.ip()));
        } else {
            words.push("--".to_owned());
        }
        words.push(command.to_owned());
        words
    }
}

/// Makes the group for bytes through one session, with one cipher, in one direction.
fn stream(context: &Context, site: &Rc<Site>, cipher: &str, end: End) -> Group {
    let (word, direction) = match end {
        End::Read => ("down", "from server to client"),
        End::Write => ("up", "from client to server"),
    };
    let short = cipher.trim_end_matches("@openssh.com");
    let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
    let pairing =
        Pairing::Pairs(vec![pair("penstock", "openssh"), pair("penstock", RAW), pair("openssh", RAW)]);
    let mut group =
        Group::new(format!("{word}-{short}"), format!("{short}, one stream {direction}"), "GB", pairing);
    let seconds = |key: &str, title: &str| figure(key, title, Scale::Seconds, Better::Lower);
    group.columns = vec![
        Metric::Rate,
        seconds(SERVER, "server's CPU"),
        figure(OF_WINDOW, "of the window's limit", Scale::Count, Better::Lower),
    ];
    if BARRED.contains(&short) {
        group.limits = vec![Limit::ratio("penstock", Metric::CpuPerUnit, &["openssh"], 0.5)];
    }
    if short == BARRED[0] && end == End::Read {
        group.extent = Extent::Quick;
    }
    for carrier in Carrier::ALL {
        let (site, cipher) = (Rc::clone(site), cipher.to_owned());
        let version = carrier.version(context, &site.ssh);
        let contestant = Contestant::new(carrier.name(), move |context| {
            Session::start(context, &site, carrier, &cipher, end)
        });
        group.contestants.push(with_version(contestant, version));
    }
    if let Some(aead) = Cipher::of_ssh(cipher) {
        let work = if end == End::Read { Work::Open } else { Work::Seal };
        group.contestants.push(Contestant::new(RAW, move |_| Ok(Raw(Aead { cipher: aead, work }))));
    }
    group
}

fn with_version(contestant: Contestant, version: Option<String>) -> Contestant {
    match version {
        Some(version) => contestant.version(version),
        None => contestant,
    }
}

/// An open SSH session. Between trials nobody reads its bytes, so it waits.
struct Session {
    client: Process,
    server: Rc<Server>,
    carrier: Carrier,
    pipe: Pipe,
    words: Vec<String>,
    /// Keeps the pipe open between trials.
    _held: File,
}

impl Session {
    fn start(
        context: &Context,
        site: &Site,
        carrier: Carrier,
        cipher: &str,
        end: End,
    ) -> Result<Self, Error> {
        let server = site.server(context)?;
        let path = context.path("pipe");
        nix::unistd::mkfifo(&path, Mode::S_IRUSR | Mode::S_IWUSR).doing("make a pipe")?;
        let held = OpenOptions::new().read(true).write(true).open(&path).doing("open a pipe")?;
        let command = match end {
            End::Read => format!("while cat {}; do :; done", server.ring.display()),
            End::Write => "cat >/dev/null".to_owned(),
        };
        let words = carrier.words(context, site, &server.sshd, Some(cipher), &command);
        // A shell opens the pipe for the client's redirection.
        let redirect = if end == End::Read {
            "exec \"$@\" >\"$0\" </dev/null"
        } else {
            "exec \"$@\" <\"$0\" >/dev/null"
        };
        let launch = Launch::new(carrier.name(), "/bin/sh", &context.cores.target);
        let launch = launch.args(["-c", redirect]).arg(&path).args(&words);
        let client = Process::start(context, &launch)?;
        Ok(Session { client, server, carrier, pipe: Pipe { path, end }, words, _held: held })
    }
}

impl Running for Session {
    fn configuration(&self) -> String {
        format!("{}\n\n# sshd_config\n{}", shell_line(&self.words), self.server.sshd.configuration)
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        self.client.check()?;
        let tree = |name: &str, pid| Metered { name: name.to_owned(), pid };
        let metered =
            vec![tree("target", self.client.pid()), tree("server", self.session_of_server(context)?)];
        let tally = Agent::load(context, "pipe", Order::Pipe(self.pipe.clone()), window, metered)?;
        let gigabytes = tally.bytes as f64 / 1e9;
        let seconds = tally.seconds;
        if tally.bytes == 0 {
            self.client.check()?;
        }
        let mut sample = tally.sample(&["target"]);
        sample.figures.values_mut().for_each(|value| *value /= gigabytes);
        let limit = self.carrier.window(self.pipe.end) / self.server.round_trip;
        sample.figures.insert(OF_WINDOW.to_owned(), gigabytes * 1e9 / seconds / limit);
        sample.figures.retain(|_, value| value.is_finite());
        sample.units = gigabytes;
        Ok(sample)
    }
}

impl Session {
    /// Returns the server's process id. All its CPU time belongs to this session: the other sessions' clients are
    /// blocked, because nobody reads from or writes to them.
    fn session_of_server(&self, context: &Context) -> Result<i32, Error> {
        context.check()?;
        let pid = self.server.sshd.process.pid();
        match Processes::read().tree(pid).is_empty() {
            false => Ok(pid),
            true => Err(Error::Ended { what: "sshd".to_owned(), log: self.server.sshd.process.last_words() }),
        }
    }
}

struct Raw(Aead);

impl Running for Raw {
    fn configuration(&self) -> String {
        "# aws-lc-rs, records of 32 KiB in one buffer, one core: nothing is sent\n".to_owned()
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        let launch = Agent::launch(context, RAW, &context.cores.target);
        let metered = vec![Metered { name: "target".to_owned(), pid: 0 }];
        let tally = Agent::load_as(context, &launch, Order::Aead(self.0), window, metered)?;
        let gigabytes = tally.bytes as f64 / 1e9;
        let mut sample = tally.sample(&["target"]);
        sample.units = gigabytes;
        Ok(sample)
    }
}

/// Makes the group for repeated connections: each connects, logs in and runs `true`.
fn connect(context: &Context, site: &Rc<Site>) -> Group {
    let title = "connect, log in with Ed25519, run `true`, hang up";
    let mut group = Group::new("connect", title, "connection", Pairing::Subject("penstock".to_owned()));
    group.columns = vec![Metric::LatencyMedian, Metric::Latency99];
    group.length = Length::Own(Duration::from_millis(1500));
    for carrier in Carrier::ALL {
        let site = Rc::clone(site);
        let version = carrier.version(context, &site.ssh);
        let contestant = Contestant::new(carrier.name(), move |context| {
            let server = site.server(context)?;
            let words = carrier.words(context, &site, &server.sshd, None, "true");
            Ok(Connections { words, _server: server, carrier })
        });
        group.contestants.push(with_version(contestant, version));
    }
    group
}

/// Sequential connections, one process each.
struct Connections {
    words: Vec<String>,
    _server: Rc<Server>,
    carrier: Carrier,
}

impl Running for Connections {
    fn configuration(&self) -> String {
        shell_line(&self.words)
    }

    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        let name = self.carrier.name();
        let (program, arguments) =
            self.words.split_first().ok_or_else(|| Error::Worthless(name.to_owned()))?;
        let launch = Launch::new(name, program, &context.cores.target).args(arguments);
        let mut latency = Recorder::default();
        let before = process::cpu_of_ended()?;
        let begin = Instant::now();
        let mut units = 0.0;
        while units < 1.0 || begin.elapsed() < window.duration {
            let start = Instant::now();
            let mut process = Process::start(context, &launch)?;
            if process.wait(context, LIMIT)? == Ending::Badly {
                return Err(Error::Ended { what: name.to_owned(), log: process.last_words() });
            }
            latency.record(start.elapsed());
            units += 1.0;
        }
        let cpu = process::cpu_of_ended()? - before;
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Sample { units, seconds, cpu: Some(cpu), latency: Some(latency.finish()), ..Sample::default() })
    }
}

fn shell_line(words: &[String]) -> String {
    words.iter().map(|word| text::shell::word(word)).collect::<Vec<_>>().join(" ")
}

fn figure(key: &str, title: &str, scale: Scale, better: Better) -> Metric {
    Metric::Figure { key: key.to_owned(), title: title.to_owned(), scale, better }
}

const RAW: &str = "raw-aead";
const SERVER: &str = "server-cpu";
const OF_WINDOW: &str = "of-window";
/// Ciphers with a limit; the first one is part of every quick run.
const BARRED: &[&str] = &["aes128-gcm", "aes256-gcm", "chacha20-poly1305"];
const MIB: f64 = 1024.0 * 1024.0;
const LIMIT: Duration = Duration::from_secs(20);

const NOTES: &[&str] = &[
    "A server of its own (sshd, fresh keys, loopback) and the clients have a core each. The session is up before the \
     clock starts; then its standard output is read, or its standard input written, by a process on the server's core, \
     through an ordinary pipe of 64 KiB. CPU is that of the client alone; the server's is a column.",
    "The data are 16 MiB of noise, again and again; down, the server's command is `while cat FILE; do :; done`, up it is \
     `cat >/dev/null`. `dd if=/dev/zero | pv | ssh` counts the connection, the copies of dd and pv, and both ends of \
     the session on any core, by the wall clock.",
    "raw-aead: the same cipher in aws-lc-rs, as SSH arranges it, records of 32 KiB in one buffer, nothing sent: how much \
     of a core's ceiling a client reaches is its ratio to it. Ciphers in CTR and CBC mode have a MAC beside them and no such figure.",
    "of the window's limit: the rate, divided by what the window allows (window / round trip). Near 1, the window and not \
     the cipher was measured; on a loopback interface it is far below.",
];
