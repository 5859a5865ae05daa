//! Cost of loading one CA certificate from a trust store, and its growth with the number of certificates.
//!
//! Each contestant is a process that loads once and ends. The cost is its CPU time, as counted by the kernel, minus
//! that of the same process with a single certificate. The difference excludes process start, program loading and the
//! one verification that some commands perform.

use std::collections::BTreeMap;
use std::ops::{AddAssign, Sub};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::agent::Agent;
use crate::contestant::{Contestant, Running};
use crate::context::{Context, Extent};
use crate::error::Error;
use crate::limit::Limit;
use crate::load::Order;
use crate::load::gauge::Window;
use crate::load::truststore::TrustStore;
use crate::meter::Cpu;
use crate::pairing::Pairing;
use crate::plan::{Group, Length, Plan, Scenario};
use crate::process::{self, Ending, Launch, Process};
use crate::sample::{Better, Metric, Sample, Scale};
use crate::version;
use authorities::Authorities;

pub mod authorities;

#[derive(Debug)]
pub struct TrustStores;

impl Scenario for TrustStores {
    fn name(&self) -> &'static str {
        "truststore"
    }

    fn question(&self) -> &'static str {
        "206, 1000 and 4000 CA certificates, as a bundle and one per file: what does it cost to load them?"
    }

    fn plan(&self, context: &Context) -> Result<Plan, Error> {
        let mut plan = Plan::default();
        for form in &[Form::Bundle, Form::Files] {
            let mut group = Group::new(
                form.id(),
                format!("{MOST} CA certificates, {}", form.title()),
                "certificate",
                Pairing::Subject(Loader::Penstock.name().to_owned()),
            );
            group.columns = columns();
            group.length = Length::Own(LOADING);
            if *form == Form::Bundle {
                group.extent = Extent::Quick;
                group.limits = vec![
                    Limit::absolute(Loader::Penstock.name(), Metric::CpuPerUnit, 10e-6).goal(5e-6),
                    Limit::absolute(Loader::Penstock.name(), growth(), 5.0),
                ];
            }
            for loader in Loader::ALL {
                match loader.find(context, *form) {
                    Ok(program) => group.contestants.push(contestant(loader, *form, program)),
                    Err(error) => plan.note_missing(error)?,
                }
            }
            plan.groups.push(group);
        }
        plan.notes = NOTES.iter().map(|note| (*note).to_owned()).collect();
        Ok(plan)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Bundle,
    Files,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loader {
    Penstock,
    Gnutls,
    Openssl,
}

impl Form {
    fn id(self) -> &'static str {
        match self {
            Form::Bundle => "bundle",
            Form::Files => "files",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Form::Bundle => "all in one file",
            Form::Files => "one per file",
        }
    }
}

impl Loader {
    const ALL: [Loader; 3] = [Loader::Penstock, Loader::Gnutls, Loader::Openssl];

    fn name(self) -> &'static str {
        match self {
            Loader::Penstock => "penstock",
            Loader::Gnutls => "gnutls",
            Loader::Openssl => "openssl",
        }
    }

    /// Finds the program. No command loads many files, so small Python programs call the libraries.
    fn find(self, context: &Context, form: Form) -> Result<PathBuf, Error> {
        match (self, form) {
            (Loader::Penstock, _) => Ok(context.program.clone()),
            (Loader::Gnutls, Form::Bundle) => process::find("certtool", "gnutls-bin"),
            (Loader::Openssl, Form::Bundle) => process::find("openssl", "openssl"),
            // Prefer the distribution's Python: another one may contain its own OpenSSL.
            (_, Form::Files) => Some(PathBuf::from("/usr/bin/python3"))
                .filter(|path| path.is_file())
                .map_or_else(|| process::find("python3", "python3"), Ok),
        }
    }

    fn version(self, form: Form, program: &std::path::Path) -> Option<String> {
        match (self, form) {
            (Loader::Penstock, _) => version::of(program, &["--version"]),
            (Loader::Gnutls, Form::Bundle) => version::of(program, &["--version"]),
            (Loader::Openssl, Form::Bundle) => version::of(program, &["version"]),
            (Loader::Gnutls, Form::Files) => {
                version::of(program, &["-c", GNUTLS_VERSION]).map(|version| format!("GnuTLS {version}"))
            }
            (Loader::Openssl, Form::Files) => {
                version::of(program, &["-c", "import ssl; print(ssl.OPENSSL_VERSION)"])
            }
        }
    }

    /// Returns the command or program text for the report.
    fn words(self, form: Form) -> String {
        match (self, form) {
            (Loader::Penstock, _) => {
                "# rustls-pki-types decodes the PEM, rustls::RootCertStore::add parses each certificate\n"
                    .to_owned()
            }
            (Loader::Gnutls, Form::Bundle) => {
                "certtool --verify --load-ca-certificate bundle.pem --infile leaf.pem\n".to_owned()
            }
            (Loader::Openssl, Form::Bundle) => {
                "openssl verify -no-CApath -no-CAstore -CAfile bundle.pem leaf.pem\n".to_owned()
            }
            (Loader::Gnutls, Form::Files) => {
                format!("python3 -I load.py DIRECTORY\n\n# load.py\n{GNUTLS_FILES}")
            }
            (Loader::Openssl, Form::Files) => {
                format!("python3 -I load.py DIRECTORY\n\n# load.py\n{OPENSSL_FILES}")
            }
        }
    }
}

fn contestant(loader: Loader, form: Form, program: PathBuf) -> Contestant {
    let version = loader.version(form, &program);
    let contestant = Contestant::new(loader.name(), move |context| {
        let authorities = Authorities::make(context.directory(), &[FEWEST, SMALL, MIDDLE, MOST])?;
        Ok(Loading { loader, form, program: program.clone(), authorities, heat: CacheState::Cold })
    });
    match version {
        Some(version) => contestant.version(version),
        None => contestant,
    }
}

struct Loading {
    loader: Loader,
    form: Form,
    program: PathBuf,
    authorities: Authorities,
    heat: CacheState,
}

/// Whether programs and certificates are already in the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CacheState {
    Cold,
    Warm,
}

impl Running for Loading {
    fn configuration(&self) -> String {
        self.loader.words(self.form)
    }

    /// Loads all sizes repeatedly until the window has passed, at least once.
    fn trial(&mut self, context: &Context, window: Window) -> Result<Sample, Error> {
        if self.heat == CacheState::Cold {
            for count in [FEWEST, SMALL] {
                self.once(context, count)?;
            }
            self.heat = CacheState::Warm;
        }
        let begin = Instant::now();
        let mut turns = 0.0;
        let mut used: BTreeMap<usize, Cost> = BTreeMap::new();
        while turns < 1.0 || begin.elapsed() < window.duration {
            for count in [FEWEST, SMALL, MIDDLE, MOST] {
                *used.entry(count).or_default() += self.once(context, count)?;
            }
            turns += 1.0;
        }
        let cost = |count| {
            let [many, one] = [count, FEWEST].map(|count| used.get(&count).copied().unwrap_or_default());
            (many - one).divided_by(turns)
        };
        Ok(sample(cost(SMALL), cost(MIDDLE), cost(MOST)))
    }
}

impl Loading {
    /// Runs one process from its start to its end.
    fn once(&self, context: &Context, count: usize) -> Result<Cost, Error> {
        let launch = Launch::new(self.loader.name(), &self.program, &context.cores.target);
        let (bundle, files) = (self.authorities.bundle(count), self.authorities.files(count));
        let launch = match (self.loader, self.form) {
            (Loader::Penstock, Form::Bundle) => {
                return self.measure_penstock(context, count, TrustStore::Bundle(bundle));
            }
            (Loader::Penstock, Form::Files) => {
                return self.measure_penstock(context, count, TrustStore::Files(files));
            }
            (Loader::Gnutls, Form::Bundle) => {
                let launch = launch.arg("--verify").arg("--load-ca-certificate").arg(bundle);
                launch.arg("--infile").arg(self.authorities.leaf())
            }
            (Loader::Openssl, Form::Bundle) => {
                let launch = launch.args(["verify", "-no-CApath", "-no-CAstore", "-CAfile"]).arg(bundle);
                launch.arg(self.authorities.leaf())
            }
            (Loader::Gnutls, Form::Files) => launch.args(["-I", "-c", GNUTLS_FILES]).arg(files),
            (Loader::Openssl, Form::Files) => launch.args(["-I", "-c", OPENSSL_FILES]).arg(files),
        };
        let before = Cost::so_far()?;
        let begin = Instant::now();
        let mut process = Process::start(context, &launch)?;
        let ending = process.wait(context, LIMIT)?;
        let wall = begin.elapsed();
        if ending == Ending::Badly {
            return Err(Error::Ended { what: launch.name, log: process.last_words() });
        }
        drop(process);
        Ok(Cost { wall: wall.as_secs_f64(), ..Cost::so_far()? - before })
    }

    fn measure_penstock(&self, context: &Context, count: usize, store: TrustStore) -> Result<Cost, Error> {
        let launch = Agent::launch(context, self.loader.name(), &context.cores.target);
        let window = Window { warm_up: Duration::ZERO, duration: LIMIT };
        let before = Cost::so_far()?;
        let begin = Instant::now();
        let tally = Agent::load_as(context, &launch, Order::TrustStore(store), window, Vec::new())?;
        let cost = Cost { wall: begin.elapsed().as_secs_f64(), ..Cost::so_far()? - before };
        if tally.units != count as u64 {
            let text = format!("it loaded {} of {count} certificates", tally.units);
            return Err(Error::Load { what: launch.name, text });
        }
        Ok(cost)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Cost {
    cpu: Cpu,
    /// Seconds.
    wall: f64,
}

impl Cost {
    fn so_far() -> Result<Self, Error> {
        Ok(Cost { cpu: process::cpu_of_ended()?, wall: 0.0 })
    }

    fn divided_by(self, turns: f64) -> Self {
        let Cpu { total, user, system } = self.cpu;
        let cpu = Cpu { total: total / turns, user: user / turns, system: system / turns };
        Cost { cpu, wall: self.wall / turns }
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Cost) {
        self.cpu = self.cpu + other.cpu;
        self.wall += other.wall;
    }
}

impl Sub for Cost {
    type Output = Cost;

    fn sub(self, other: Cost) -> Cost {
        Cost { cpu: self.cpu - other.cpu, wall: self.wall - other.wall }
    }
}

/// Makes a sample from the costs, which exclude the first certificate.
fn sample(small: Cost, middle: Cost, most: Cost) -> Sample {
    let per = |cost: Cost, count: usize| cost.cpu.total / (count - FEWEST) as f64;
    let growth = most.cpu.total / middle.cpu.total;
    let mut figures = BTreeMap::from([
        (PER_SMALL.to_owned(), per(small, SMALL)),
        (PER_MIDDLE.to_owned(), per(middle, MIDDLE)),
    ]);
    if growth.is_finite() && growth > 0.0 {
        figures.insert(GROWTH.to_owned(), growth);
        figures.insert(EXPONENT.to_owned(), growth.ln() / (MOST as f64 / MIDDLE as f64).ln());
    }
    let units = (MOST - FEWEST) as f64;
    Sample { units, seconds: most.wall, cpu: Some(most.cpu), figures, ..Sample::default() }
}

fn figure(key: &str, title: String, scale: Scale) -> Metric {
    Metric::Figure { key: key.to_owned(), title, scale, better: Better::Lower }
}

/// Ratio of the costs when the number of certificates is four times as large.
fn growth() -> Metric {
    figure(GROWTH, format!("t({MOST})/t({MIDDLE})"), Scale::Count)
}

fn columns() -> Vec<Metric> {
    vec![
        figure(PER_MIDDLE, format!("of {MIDDLE}"), Scale::Seconds),
        figure(PER_SMALL, format!("of {SMALL}"), Scale::Seconds),
        growth(),
        figure(EXPONENT, "growth exponent".to_owned(), Scale::Count),
        Metric::TimePerUnit,
    ]
}

/// The call that once took 40 s for 206 files, applied to each file.
const GNUTLS_FILES: &str = "\
import ctypes, os, sys
lib = ctypes.CDLL('libgnutls.so.30')
credentials = ctypes.c_void_p()
assert lib.gnutls_certificate_allocate_credentials(ctypes.byref(credentials)) == 0
for entry in os.scandir(sys.argv[1]):
    # The last argument is GNUTLS_X509_FMT_PEM; the result is the number of certificates.
    if lib.gnutls_certificate_set_x509_trust_file(credentials, entry.path.encode(), 1) != 1:
        sys.exit(entry.path)
lib.gnutls_certificate_free_credentials(credentials)
";

const GNUTLS_VERSION: &str = "\
import ctypes
lib = ctypes.CDLL('libgnutls.so.30')
lib.gnutls_check_version.restype = ctypes.c_char_p
print(lib.gnutls_check_version(None).decode())
";

/// `load_verify_locations` calls SSL_CTX_load_verify_locations.
const OPENSSL_FILES: &str = "\
import os, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
files = 0
for entry in os.scandir(sys.argv[1]):
    context.load_verify_locations(cafile=entry.path)
    files += 1
if context.cert_store_stats()['x509_ca'] != files:
    sys.exit('not every certificate was loaded')
";

const NOTES: &[&str] = &[
    "Each figure is the CPU time (user and system) of a whole process that loads N certificates and ends, minus that \
     of the same process with one certificate, divided by N - 1. The growth exponent is \
     log(t(4000)/t(1000))/log 4: 1 is linear, 2 is quadratic.",
    "penstock: reads the file or files, decodes PEM (rustls-pki-types) and parses each certificate into a trust anchor \
     (rustls RootCertStore::add, which is rustls-webpki). Public keys are not looked at until they are needed, and \
     equal certificates are not looked for; the others do both or one of them while they load.",
    "gnutls and openssl, bundle: `certtool --verify` and `openssl verify`, which load the bundle and verify one \
     certificate. Files: the libraries' own calls (gnutls_certificate_set_x509_trust_file, \
     SSL_CTX_load_verify_locations) on each file, from a small Python program; what Python adds to a call is about a \
     microsecond, and opening a directory entry is work for everybody.",
    "The certificates are made for the run: ECDSA P-256, about 600 bytes each, with different names and keys. Those of \
     a public trust store are about twice as long, many with RSA keys.",
];

/// Number of certificates in the baseline.
const FEWEST: usize = 1;
/// Number of certificates in a well-known report of slow loading.
const SMALL: usize = 206;
const MIDDLE: usize = 1000;
const MOST: usize = 4000;

const PER_SMALL: &str = "per-certificate-small";
const PER_MIDDLE: &str = "per-certificate-middle";
const GROWTH: &str = "growth";
const EXPONENT: &str = "exponent";

/// Average duration of a trial: slow contestants need seconds for all sizes.
const LOADING: Duration = Duration::from_millis(1100);

/// Time limit of one process.
const LIMIT: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(total: f64) -> Cost {
        Cost { cpu: Cpu { total, ..Cpu::default() }, wall: total }
    }

    #[test]
    fn the_exponent_is_one_for_linear_and_two_for_quadratic_growth() {
        for (middle, most, expected) in [(1.0, 4.0, 1.0), (1.0, 16.0, 2.0)] {
            let sample = sample(cost(0.1), cost(middle), cost(most));
            assert!((sample.figures[EXPONENT] - expected).abs() < 1e-9, "{sample:?}");
        }
        assert!(
            (Metric::CpuPerUnit.of(&sample(cost(0.1), cost(1.0), cost(4.0))).unwrap() - 4.0 / 3999.0).abs()
                < 1e-9
        );
    }

    #[test]
    fn a_growth_that_noise_hides_is_left_out() {
        assert_eq!(sample(cost(0.1), cost(0.0), cost(1.0)).figures.get(EXPONENT), None);
        assert_eq!(sample(cost(0.1), cost(1.0), cost(-1.0)).figures.get(EXPONENT), None);
    }

    #[test]
    fn programs_of_others_load_what_they_are_given() {
        use crate::context::Interrupt;

        let context = Context::new("/nonexistent".into(), Interrupt::default(), Extent::Full).unwrap();
        let authorities = Authorities::make(context.directory(), &[FEWEST, SMALL]).unwrap();
        for loader in [Loader::Gnutls, Loader::Openssl] {
            for form in [Form::Bundle, Form::Files] {
                let Ok(program) = loader.find(&context, form) else {
                    continue;
                };
                let authorities = authorities.clone();
                let loading = Loading { loader, form, program, authorities, heat: CacheState::Cold };
                let cost = loading.once(&context, SMALL).unwrap();
                assert!(cost.cpu.total > 0.0 && cost.wall > 0.0, "{loader:?} {form:?}: {cost:?}");
            }
        }
    }
}
