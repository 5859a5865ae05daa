//! Node sets against ClusterShell itself, by whose syntax they are written: the same names, the same folding, the same
//! refusals. The real `nodeset` command for some, its library in one process for many.

#![expect(clippy::disallowed_types, reason = "the other side of the comparison is a process")]
#![expect(clippy::disallowed_methods, reason = "and it reads its groups from files")]
#![expect(clippy::unwrap_used, reason = "this is a test")]

use hosts::fleet::nodeset::{Definition, GroupFault, Groups, NoGroups, NodeSet};
use std::io::Write;
use std::process::{Command, Stdio};

#[test]
fn the_nodeset_command_expands_folds_and_counts_as_we_do() {
    for text in [
        "node[1-5/2,9]",
        "rack[1-2]node[01-40]",
        "a[001-100]",
        "node[1-5]!node3&node[1-4]^node[2-9]",
        "b2,a10,a2,b1,c,a",
        "a9,a10,a09",
        "web[1-3]-ib0,web[1-3]-ib1",
        "10.0.[0-1].[1-254]!10.0.0.[100-200]",
    ] {
        let set = NodeSet::parse(text, &mut NoGroups).unwrap();
        let nodeset = |command: &str| {
            let output = Command::new("nodeset").args([command, "--", text]).output();
            let output = output.expect("`nodeset` of clustershell is not installed: run `make setup`");
            assert!(output.status.success(), "nodeset {command} {text}: {output:?}");
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        assert_eq!(sorted(&nodeset("-e")), sorted(&set.sorted().join(" ")), "{text}");
        assert_eq!(parts(&nodeset("-f")), parts(&set.to_string()), "{text}");
        assert_eq!(nodeset("-c"), set.len().to_string(), "{text}");
    }
}

#[test]
fn handwritten_sets_mean_what_clustershell_makes_of_them() {
    let cases: Vec<String> = HANDWRITTEN.lines().map(str::to_owned).collect();
    compare(&cases, Folding::Same);
}

#[test]
fn random_sets_mean_what_clustershell_makes_of_them() {
    let mut random = Random(0x5eed);
    let one: Vec<String> = (0..300).map(|_| random.set(&["node", "a", "x-", "web.b"], "")).collect();
    compare(&one, Folding::Same);
    let many: Vec<String> =
        (0..200).map(|_| random.set(&["r[1-3]n", "r2n", "n[1-2]x[3-5]y"], "-ib")).collect();
    compare(&many, Folding::AsShort);
}

#[test]
fn what_clustershell_refuses_is_refused() {
    let cases: Vec<&str> = REFUSED.lines().collect();
    for (case, theirs) in cases.iter().zip(ask(&cases)) {
        assert!(theirs.starts_with("error"), "ClusterShell takes {case:?}: {theirs}");
        assert!(NodeSet::parse(case, &mut NoGroups).is_err(), "{case:?} was taken");
    }
}

#[test]
fn groups_and_wildcards_mean_what_clustershell_makes_of_them() {
    let directory = std::env::temp_dir().join(format!("penstock-nodeset-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&directory);
    std::fs::create_dir_all(directory.join("groups.d")).unwrap();
    let conf = format!("[Main]\ndefault: site\nautodir: {}/groups.d\n", directory.display());
    std::fs::write(directory.join("groups.conf"), conf).unwrap();
    std::fs::write(directory.join("groups.d/all.yaml"), GROUPS_YAML).unwrap();
    for case in GROUP_CASES.lines() {
        let output =
            Command::new("nodeset").env("CLUSTERSHELL_CFGDIR", &directory).args(["-f", "--", case]).output();
        let output = output.expect("`nodeset` of clustershell is not installed: run `make setup`");
        let theirs = String::from_utf8(output.stdout).unwrap();
        let ours = NodeSet::parse(case, &mut Known).unwrap_or_else(|fault| panic!("{fault}"));
        assert_eq!(
            parts(theirs.trim()),
            parts(&ours.to_string()),
            "{case}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    std::fs::remove_dir_all(&directory).unwrap();
}

enum Folding {
    /// The very same text.
    Same,
    /// No more parts: several numbers may fold in more than one way.
    AsShort,
}

fn compare(cases: &[String], folding: Folding) {
    let texts: Vec<&str> = cases.iter().map(String::as_str).collect();
    let answers = ask(&texts);
    assert_eq!(answers.len(), cases.len());
    for (case, theirs) in cases.iter().zip(answers) {
        let set = NodeSet::parse(case, &mut NoGroups).unwrap_or_else(|fault| panic!("{fault}"));
        let mut fields = theirs.split('\t');
        let (kind, folded, expanded) =
            (fields.next().unwrap(), fields.next().unwrap(), fields.next().unwrap_or_default());
        assert_eq!(kind, "set", "{case:?}: {theirs}");
        assert_eq!(sorted(expanded), sorted(&set.sorted().join(" ")), "names of {case:?}");
        match folding {
            Folding::Same => {
                // ClusterShell cuts ranges where we do not if padded and other numbers stand together.
                let ours = set.to_string();
                assert!(
                    ours == folded || ours.len() < folded.len(),
                    "folding of {case:?}: ours {ours}, theirs {folded}"
                );
                assert_eq!(expanded, set.sorted().join(" "), "order of {case:?}");
            }
            Folding::AsShort => {
                assert!(
                    parts(&set.to_string()).len() <= parts(folded).len(),
                    "{case:?}: ours {set}, theirs {folded}"
                );
                let again = NodeSet::parse(folded, &mut NoGroups).unwrap();
                assert!(again == set, "theirs {folded} is not ours {set}");
            }
        }
    }
}

/// What ClusterShell says of each: `set FOLDED EXPANDED` or `error MESSAGE`, between tabs.
fn ask(cases: &[&str]) -> Vec<String> {
    let python = Command::new("/usr/bin/python3")
        .args(["-c", DRIVER])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut python = python.expect("python3 is not installed: run `make setup`");
    let mut input = python.stdin.take().unwrap();
    let text = cases.join("\n");
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()).unwrap());
    let output = python.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success(), "clustershell for python3 is not installed: run `make setup`");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The parts of a folded set, in any order.
fn parts(folded: &str) -> Vec<&str> {
    let mut open = 0;
    let mut parts: Vec<&str> = folded
        .split(|sign| {
            open += i32::from(sign == '[') - i32::from(sign == ']');
            sign == ',' && open == 0
        })
        .collect();
    parts.sort_unstable();
    parts
}

fn sorted(names: &str) -> Vec<&str> {
    let mut names: Vec<&str> = names.split_whitespace().collect();
    names.sort_unstable();
    names
}

const DRIVER: &str = "
import sys
from ClusterShell.NodeSet import NodeSet, RESOLVER_NOGROUP
for line in sys.stdin:
    try:
        found = NodeSet(line.rstrip('\\n'), resolver=RESOLVER_NOGROUP)
        print('set', found, ' '.join(found), sep='\\t')
    except Exception as error:
        print('error', str(error).replace('\\n', ' '), sep='\\t')
";

/// A generator that gives the same sets every time (xorshift64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn set(&mut self, prefixes: &[&str], suffix: &str) -> String {
        let mut out = String::new();
        for term in 0..=self.below(4) {
            if term > 0 {
                out.push_str([",", ",", "!", "&", "^", " ^ ", " , "][self.below(7) as usize]);
            }
            out.push_str(prefixes[self.below(prefixes.len() as u64) as usize]);
            let parts: Vec<String> = (0..=self.below(3)).map(|_| self.range()).collect();
            match self.below(4) {
                0 => out.push_str(parts[0].split('-').next().unwrap()),
                _ => out.push_str(&format!("[{}]", parts.join(","))),
            }
            if self.below(3) == 0 {
                out.push_str(suffix);
            }
        }
        out
    }

    fn range(&mut self) -> String {
        let first = self.below(110);
        let last = first + self.below(30);
        let step =
            [String::new(), String::new(), format!("/{}", 1 + self.below(6))][self.below(3) as usize].clone();
        match self.below(5) {
            0 => format!("{first}"),
            1 => format!("{first:03}-{last:03}{step}"),
            2 if last < 100 => format!("{first:02}-{last:02}{step}"),
            _ => format!("{first}-{last}{step}"),
        }
    }
}

/// Groups as in [`GROUPS_YAML`].
struct Known;

impl Groups for Known {
    fn group(&mut self, source: Option<&str>, name: &str) -> Result<Definition, GroupFault> {
        let source = source.unwrap_or("site");
        let section =
            GROUPS_YAML.split("\n\n").find(|section| section.starts_with(&format!("{source}:"))).unwrap();
        let line = section.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: "))).unwrap();
        Ok(Definition { text: line.trim_matches('"').to_owned(), source: source.to_owned() })
    }

    fn all(&mut self, source: Option<&str>) -> Result<Definition, GroupFault> {
        match source {
            Some("racks") => Ok(Definition { text: "@r1,@r2,@r3".to_owned(), source: "racks".to_owned() }),
            _ => self.group(source, "all"),
        }
    }
}

const GROUPS_YAML: &str = r#"site:
  web: web[1-5]
  db: db[1-2]
  both: "@web,@db"
  but: "@web!web3"
  mixed: "@racks:r1 web9"
  all: web[1-9],db[1-9]

racks:
  r1: r1n[1-3]
  r2: r2n[1-3]
  r3: "@r1&r1n2"
"#;

const GROUP_CASES: &str = "@web
@both
@web!web3
@site:web&web[2-3]
@racks:r[1-2]
@racks:r[1-3]!r1n1
@racks:r3
@mixed
@but
@*
web*
web?
*
*!web*
d*&*1
web[1-2]*
@both^web[4-9]";

const REFUSED: &str = "node[5-1]
node[1-
node]
node[a]
node[]
node[1,,2]
node[,1]
node[1,]
,a
a,
a,,b
!a
a&
a!!b
a!&b
a[01-100]
a[1-03]
a[1-3/0]
a[1-3/x]
a[1-5/2/2]
a[3/2]
a[0x1]
a[1e3]
a[1!2]
a[1]]
a[[1]]
n[1-2][3-4]
n[1-3]0[4-5]
[
]
[2001:zz::1]:22";

const HANDWRITTEN: &str = "a
a1
a01
a0
a00
node[1-5]
node[1-5/2,9]
node[1-10/3]
node[1-3/10]
node[001-100]
node[08-12]
node[8-12]
node[0-0]
node[5]
node[05]
node[1,1-3]
node[3,2,1]
node[ 1 - 3 ]
node[1 , 3]
node[1-3]x
node[1-3]-ib
node[1-3].example.org
node1-[1-3]
n1[2-3]
n0[1-3]
n[1-3]5
n[1-2]0
n[01-02]5
n[8-12]5
a[08-12]5
5[1-2]
[1-3]
[01-10]
1,2,3
a,b,c
b,a,B,_,a-1,a.1,ab
x1,1x,1,x
a1y2,a1y,a1
b2,a10,a2,b1,c,a
a08,a9,a10
a9,a10,a010,a0010
a09,a10,a11,a12
a9,a10,a09
a99,a100,a099
a0,a1,a00,a01
a1,a01
A1,a1
a[000-001]
a[08-99],a[100-101]
a[8-12],a05
a[98-99],a[100-101],a005
a[0-2],a[00-11]
a[9-10],a[009-011]
r1n01,r1n2
a!b
a,a!a,b
node[1-5]!node3
node[1-5]!node3&node[1-2]
node[1-5]^node[3-8]
node[1-5]&node[3-8]
node[1-5]!node[2-4]^node[4-6],node9
node[1-5],x!node[1-3],x
a[1-3]!a2,a2
a[1-3] ! a2
a[1-3] ^ a[2-4] ^ a[3-5]
a & a
a ^ a,b
rack[1-2]node[01-04]
rack[1-2]node[01-40]
a.b[1-2].c[3-4].d
node[1-5]-[1-2]-x
192.168.0.[1-20]
192.168.[0-1].[1-20]
10.0.0.1,10.0.0.2,10.0.0.9
10.[0-1].[0-1].[0-1]
2001:db8::[1-9]
2001:db8::1
u@h[1-2]
u@h[1-2]:22
u@h1,v@h1
a_b-c.d[1-2]
n[1-2]x[3-4]y[5-6]
n[1-2]x[3-4],n3x[3-4]
n[1-2]x[3-4],n[1-2]x5
n1x1,n2x1,n3x1
n1x1,n1x2,n1x3
web[1-3],db[1-3],mail
web[1-1000]
web[1-1000/7]
web[0001-1000]
a[1-2]b[01-03]c[1-2]
node[18446744]
node[1-2],node[4-5],node[3]
node[100-200]!node[150-160]
node[1-99]&node[050-150]
x[1-3],y[1-3]&x2,y3";
