//! Parser of node sets. `nodeset.rs` describes the syntax.

use super::{Definition, Fault, GroupFault, Groups, LIMIT, NodeSet, TooMany, matches};
use std::collections::HashMap;
use text::terminal::escaped;

/// Parses one set and the definitions of the groups in it.
pub(super) struct Parser<'a> {
    groups: &'a mut dyn Groups,
    /// Names that wildcards match; `None` until a wildcard needs them.
    known: Option<NodeSet>,
    /// Meaning of a name without `@` in the text itself. In the definition of a group the name is a host.
    names: Names,
    /// Groups whose definitions are being parsed, the outermost first.
    open: Vec<String>,
    /// Groups that were parsed. Without this cache, groups of groups could take exponential time.
    done: HashMap<String, NodeSet>,
}

impl<'a> Parser<'a> {
    pub(super) fn new(groups: &'a mut dyn Groups) -> Self {
        Self { groups, known: None, names: Names::Hosts, open: Vec::new(), done: HashMap::new() }
    }

    /// Names are groups, with or without `@`.
    pub(super) fn of_groups(mut self) -> Self {
        self.names = Names::Groups;
        self
    }

    /// Wildcards match only the names in `known`.
    pub(super) fn with_known(mut self, known: &NodeSet) -> Self {
        self.known = Some(known.clone());
        self
    }

    pub(super) fn set(&mut self, text: &str) -> Result<NodeSet, Fault> {
        self.set_of(text, None).map_err(|trouble| trouble.into_fault(text))
    }

    /// Evaluates `text` from left to right. `@group` in `text` is a group of `source`.
    fn set_of(&mut self, text: &str, source: Option<&str>) -> Result<NodeSet, ParseFault> {
        let mut set = NodeSet::new();
        let mut rest = Scanner { text, at: 0 };
        let mut operator = Operator { kind: Kind::Unite, at: 0 };
        rest.skip_blanks();
        if rest.at == text.len() {
            return Ok(set);
        }
        if let Some(found) = rest.operator() {
            return Err(trouble(
                found.at,
                format!("\"{}\" has nothing before it", found.kind.sign()),
                NAME_THEN,
            ));
        }
        loop {
            let term = rest.term()?;
            if term.text.is_empty() {
                let what = format!("\"{}\" has nothing after it", operator.kind.sign());
                return Err(trouble(operator.at, what, "name hosts after it, or remove it"));
            }
            let operand = self.term(&term, source, operator.kind)?;
            match operator.kind {
                Kind::Unite => set.unite(&operand).map_err(|many| too_many(term.at, many))?,
                Kind::Subtract => set.subtract(&operand),
                Kind::Intersect => set.intersect(&operand),
                Kind::Differ => set.differ(&operand).map_err(|many| too_many(term.at, many))?,
            }
            rest.skip_blanks();
            if rest.at == text.len() {
                return Ok(set);
            }
            // A blank between two terms means union.
            operator = rest.operator().unwrap_or(Operator { kind: Kind::Unite, at: rest.at });
            rest.skip_blanks();
        }
    }

    fn term(&mut self, term: &Term<'_>, source: Option<&str>, kind: Kind) -> Result<NodeSet, ParseFault> {
        if let Some(group) = term.text.strip_prefix('@') {
            return self.groups_of(&Term { text: group, at: term.at + 1 }, source, term.at);
        }
        if self.names == Names::Groups && self.open.is_empty() {
            return self.groups_of(term, source, term.at);
        }
        let mut set = NodeSet::new();
        for name in expand(term)? {
            let name = without_brackets(name);
            if name.contains(['*', '?']) {
                let found = self.matching(&name, term.at)?;
                if found.is_empty() && kind == Kind::Unite {
                    let known = self.known.as_ref().map_or(0, NodeSet::len);
                    let what = format!("\"{name}\" matches none of the {known} nodes that are known");
                    return Err(trouble(
                        term.at,
                        what,
                        "a wildcard matches only hosts that are in a group: write the names of the hosts, or a group",
                    ));
                }
                set.unite(&found).map_err(|many| too_many(term.at, many))?;
            } else {
                check_name(&name, term)?;
                set.insert(&name).map_err(|many| too_many(term.at, many))?;
            }
        }
        Ok(set)
    }

    /// Resolves `name`, `source:name`, `rack[1-3]` or `*` after `@`. Faults of the whole name are at `start`.
    fn groups_of(
        &mut self,
        term: &Term<'_>,
        source: Option<&str>,
        start: usize,
    ) -> Result<NodeSet, ParseFault> {
        if term.text.is_empty() {
            return Err(trouble(
                start,
                "\"@\" without the name of a group".to_owned(),
                "write @NAME, or @* for all",
            ));
        }
        let mut set = NodeSet::new();
        for group in expand(term)? {
            let (source, name) = match group.split_once(':') {
                Some((source, name)) => (Some(source), name),
                None => (source, group.as_str()),
            };
            check_group(name, source, term, start)?;
            let nodes = self.group(source, name, term.at)?;
            set.unite(&nodes).map_err(|many| too_many(term.at, many))?;
        }
        Ok(set)
    }

    fn group(&mut self, source: Option<&str>, name: &str, at: usize) -> Result<NodeSet, ParseFault> {
        let definition = match name {
            "*" => self.groups.all(source),
            _ => self.groups.group(source, name),
        };
        let definition = definition.map_err(|GroupFault { what, advice }| trouble(at, what, advice))?;
        let label = format!("@{}:{name}", definition.source);
        if let Some(set) = self.done.get(&label) {
            return Ok(set.clone());
        }
        if let Some(first) = self.open.iter().position(|open| *open == label) {
            let ring = self.open[first..].join(" -> ");
            return Err(trouble(
                at,
                format!("group {label} contains itself: {ring} -> {label}"),
                "remove one of them",
            ));
        }
        if self.open.len() >= DEEPEST {
            let what = format!("group {label} is the {}th group within a group", DEEPEST + 1);
            return Err(trouble(at, what, "name the hosts themselves somewhere"));
        }
        let Definition { text, source } = definition;
        self.open.push(label.clone());
        let read = self.set_of(&text, Some(&source)).map_err(|trouble| trouble.within(&label, &text));
        self.open.pop();
        let set = read?;
        self.done.insert(label, set.clone());
        Ok(set)
    }

    fn matching(&mut self, pattern: &str, at: usize) -> Result<NodeSet, ParseFault> {
        if self.known.is_none() {
            let aliases = self.groups.aliases();
            let mut known = match self.group(None, "*", at) {
                Ok(known) => known,
                // Aliases can match even without groups.
                Err(_) if !aliases.is_empty() => NodeSet::new(),
                Err(trouble) => return Err(trouble),
            };
            for alias in aliases {
                known.insert(&alias).map_err(|many| too_many(at, many))?;
            }
            self.known = Some(known);
        }
        let mut found = NodeSet::new();
        for name in self.known.iter().flat_map(NodeSet::names).filter(|name| matches(pattern, name)) {
            found.insert(&name).map_err(|many| too_many(at, many))?;
        }
        Ok(found)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    Hosts,
    Groups,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unite,
    Subtract,
    Intersect,
    Differ,
}

impl Kind {
    fn of(sign: char) -> Option<Self> {
        match sign {
            ',' => Some(Self::Unite),
            '!' => Some(Self::Subtract),
            '&' => Some(Self::Intersect),
            '^' => Some(Self::Differ),
            _ => None,
        }
    }

    fn sign(self) -> char {
        match self {
            Self::Unite => ',',
            Self::Subtract => '!',
            Self::Intersect => '&',
            Self::Differ => '^',
        }
    }
}

struct Operator {
    kind: Kind,
    at: usize,
}

struct Term<'t> {
    text: &'t str,
    at: usize,
}

struct Scanner<'t> {
    text: &'t str,
    at: usize,
}

impl<'t> Scanner<'t> {
    fn skip_blanks(&mut self) {
        let rest = &self.text[self.at..];
        self.at += rest.len() - rest.trim_start().len();
    }

    fn operator(&mut self) -> Option<Operator> {
        let kind = Kind::of(self.text[self.at..].chars().next()?)?;
        self.at += 1;
        Some(Operator { kind, at: self.at - 1 })
    }

    /// Reads up to the next operator or blank outside brackets.
    fn term(&mut self) -> Result<Term<'t>, ParseFault> {
        let at = self.at;
        let mut open = None;
        for (offset, sign) in self.text[at..].char_indices() {
            let here = at + offset;
            match (sign, open) {
                ('[', Some(_)) => {
                    return Err(trouble(here, "a bracket within brackets".to_owned(), ONE_BRACKET));
                }
                ('[', None) => open = Some(here),
                (']', None) => {
                    return Err(trouble(
                        here,
                        "\"]\" without its \"[\"".to_owned(),
                        "put the \"[\", or remove it",
                    ));
                }
                (']', Some(_)) => open = None,
                (_, None) if sign.is_whitespace() || Kind::of(sign).is_some() => {
                    self.at = here;
                    return Ok(Term { text: &self.text[at..here], at });
                }
                _ => {}
            }
        }
        if let Some(open) = open {
            return Err(trouble(open, "\"[\" is never closed".to_owned(), "close it with \"]\""));
        }
        self.at = self.text.len();
        Ok(Term { text: &self.text[at..], at })
    }
}

fn expand(term: &Term<'_>) -> Result<Vec<String>, ParseFault> {
    let pieces = pieces(term)?;
    let count = pieces.iter().fold(1_u128, |count, piece| match piece {
        Piece::Text(_) => count,
        Piece::Ranges(ranges) => count.saturating_mul(ranges.iter().map(Range::count).sum()),
    });
    if count > LIMIT as u128 {
        return Err(too_many(term.at, TooMany { count }));
    }
    let mut names = vec![String::new()];
    for piece in &pieces {
        match piece {
            Piece::Text(text) => names.iter_mut().for_each(|name| name.push_str(text)),
            Piece::Ranges(ranges) => {
                let numbers: Vec<String> = ranges.iter().flat_map(Range::numbers).collect();
                let longer =
                    names.iter().flat_map(|name| numbers.iter().map(move |number| format!("{name}{number}")));
                names = longer.collect();
            }
        }
    }
    Ok(names)
}

enum Piece<'t> {
    Text(&'t str),
    Ranges(Vec<Range>),
}

/// Splits a term at its brackets. Brackets around an IPv6 address count as text.
fn pieces<'t>(term: &Term<'t>) -> Result<Vec<Piece<'t>>, ParseFault> {
    let text = term.text;
    let mut pieces = Vec::new();
    let (mut start, mut last_end) = (0, None);
    let mut from = 0;
    while let Some(open) = text[from..].find('[').map(|offset| from + offset) {
        let close = open + text[open..].find(']').expect("the scanner ends a term outside of brackets only");
        let inside = &text[open + 1..close];
        from = close + 1;
        if inside.contains(':') {
            check_address(inside, &text[..open], &text[close + 1..], term.at + open)?;
            continue;
        }
        let between = &text[start..open];
        if last_end.is_some() && between.bytes().all(|byte| byte.is_ascii_digit()) {
            let what = "two ranges with nothing but digits between them".to_owned();
            return Err(trouble(term.at + open, what, "write one range, such as n[13-14,23-24]"));
        }
        pieces.push(Piece::Text(between));
        pieces.push(Piece::Ranges(ranges(inside, term.at + open + 1)?));
        start = close + 1;
        last_end = Some(start);
    }
    pieces.push(Piece::Text(&text[start..]));
    Ok(pieces)
}

/// `first-last/step`. For a single number, `last` equals `first`.
struct Range {
    first: u64,
    last: u64,
    step: u64,
    /// Number of digits with leading zeros; 0 for no padding.
    width: usize,
}

impl Range {
    fn count(&self) -> u128 {
        u128::from((self.last - self.first) / self.step) + 1
    }

    fn numbers(&self) -> impl Iterator<Item = String> {
        let step = usize::try_from(self.step).unwrap_or(usize::MAX);
        (self.first..=self.last).step_by(step).map(|number| format!("{number:0width$}", width = self.width))
    }
}

/// Parses the text between brackets: `1-5/2,9`.
fn ranges(inside: &str, at: usize) -> Result<Vec<Range>, ParseFault> {
    let mut ranges = Vec::new();
    let mut start = at;
    for part in inside.split(',') {
        let here = start + part.len() - part.trim_start().len();
        ranges.push(range(part.trim(), here)?);
        start += part.len() + 1;
    }
    Ok(ranges)
}

fn range(part: &str, at: usize) -> Result<Range, ParseFault> {
    if part.is_empty() {
        return Err(trouble(at, "a number is missing here".to_owned(), "write ranges such as [1-5,9]"));
    }
    let (ends, step) = match part.split_once('/') {
        Some((ends, step)) => (ends, Some(step)),
        None => (part, None),
    };
    let (first, last) = match ends.split_once('-') {
        Some((first, last)) => (first.trim(), Some(last.trim())),
        None => (ends.trim(), None),
    };
    let low = number(first, part, at)?;
    let high = last.map_or(Ok(low), |last| number(last, part, at))?;
    let step_by = match step {
        None => 1,
        Some(step) => number(step.trim(), part, at)?,
    };
    if step_by == 0 {
        return Err(trouble(at, format!("\"{part}\" has a step of 0"), "take a step of 1 or more"));
    }
    if last.is_none() && step.is_some() {
        return Err(trouble(
            at,
            format!("\"{part}\" has a step, but no range to walk"),
            "write FIRST-LAST/STEP",
        ));
    }
    if high < low {
        let swapped = format!("write {}-{first}", last.unwrap_or_default());
        return Err(trouble(at, format!("\"{part}\" goes down"), swapped));
    }
    let padded = |digits: &str| digits.len() > 1 && digits.starts_with('0');
    if let Some(last) = last.filter(|last| last.len() != first.len() && (padded(first) || padded(last))) {
        let (short, long) = if first.len() < last.len() { (first, last) } else { (last, first) };
        let advice = format!("write both with {} digits ({short:0>width$})", long.len(), width = long.len());
        return Err(trouble(at, format!("\"{part}\" has numbers padded to two lengths"), advice));
    }
    Ok(Range { first: low, last: high, step: step_by, width: if padded(first) { first.len() } else { 0 } })
}

fn number(digits: &str, part: &str, at: usize) -> Result<u64, ParseFault> {
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        let what = format!("\"{}\" is not a number or a range of numbers", escaped(part, SHOWN));
        return Err(trouble(at, what, "brackets contain numbers, such as [1-5/2,9]"));
    }
    if digits.len() > 18 {
        return Err(trouble(
            at,
            format!("\"{}\" is too large", escaped(part, SHOWN)),
            "numbers have at most 18 digits",
        ));
    }
    digits
        .parse()
        .map_err(|_| trouble(at, format!("\"{part}\" is too large"), "numbers have at most 18 digits"))
}

/// Checks `[2001:db8::1]`: only `user@` may stand before the brackets, only `:port` after them.
fn check_address(inside: &str, before: &str, behind: &str, at: usize) -> Result<(), ParseFault> {
    let (address, zone) = match inside.split_once('%') {
        Some((address, zone)) => (address, Some(zone)),
        None => (inside, None),
    };
    let port = behind.is_empty() || behind.strip_prefix(':').is_some_and(|port| port.parse::<u16>().is_ok());
    let user = before.is_empty() || before.ends_with('@');
    let zone =
        zone.is_none_or(|zone| !zone.is_empty() && zone.chars().all(|sign| sign.is_ascii_alphanumeric()));
    if address.parse::<std::net::Ipv6Addr>().is_ok() && user && port && zone {
        return Ok(());
    }
    let what = format!(
        "\"[{}]\" is neither a range nor an address of IPv6 with at most user@ and :port",
        escaped(inside, SHOWN)
    );
    Err(trouble(at, what, "write [2001:db8::1]:22, or node[1-5]"))
}

/// Normalises `[2001:db8::1]` to `2001:db8::1`, as ssh does, so that both are one host. With a port brackets stay.
fn without_brackets(name: String) -> String {
    let (user, host) = name.split_at(name.rfind('@').map_or(0, |at| at + 1));
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(address) => format!("{user}{address}"),
        None => name,
    }
}

/// Refuses names that a command would read as an option, or that would be a path in an output directory.
fn check_name(name: &str, term: &Term<'_>) -> Result<(), ParseFault> {
    let host = name.rsplit_once('@').map_or(name, |(_, host)| host);
    if host.is_empty() {
        return Err(trouble(
            term.at,
            format!("\"{}\" names no host", escaped(name, SHOWN)),
            "write user@host",
        ));
    }
    if name.starts_with('-') || host.starts_with('-') {
        let what = format!("\"{}\" begins with \"-\", which no name can", escaped(name, SHOWN));
        return Err(trouble(term.at, what, "options come before the set"));
    }
    let strange = |sign: char| !(sign.is_alphanumeric() || "-_.:@%+~=[]".contains(sign));
    if let Some(sign) = name.chars().find(|&sign| strange(sign)) {
        let offset = term.text.find(sign).unwrap_or(0);
        let what = format!("\"{}\" cannot be in the name of a host", sign.escape_default());
        let advice = match sign {
            '{' | '}' => "ranges are written [1-3]",
            '/' => "name one host; networks are not scanned",
            _ => "separate names by commas or blanks",
        };
        return Err(trouble(term.at + offset, what, advice));
    }
    if matches!(host, "." | "..") {
        return Err(trouble(term.at, format!("\"{host}\" is not the name of a host"), "name a host"));
    }
    Ok(())
}

fn check_group(name: &str, source: Option<&str>, term: &Term<'_>, start: usize) -> Result<(), ParseFault> {
    let good = |part: &str| {
        !part.is_empty() && part.chars().all(|sign| sign.is_alphanumeric() || "-_.+%=".contains(sign))
    };
    if source.is_none_or(good) && (name == "*" || good(name)) {
        return Ok(());
    }
    let what = format!("\"@{}\" is not the name of a group", escaped(term.text, SHOWN));
    Err(trouble(start, what, "write @NAME, @SOURCE:NAME, or @* for all; wildcards match nodes only"))
}

/// A fault before its text is known. `at` is the byte position in the text.
struct ParseFault {
    at: usize,
    what: String,
    advice: String,
    /// Set when the fault leaves the definition of its group; the position is final then.
    placed: Option<Box<Fault>>,
}

impl ParseFault {
    fn within(self, label: &str, text: &str) -> Self {
        let mut fault = self.into_fault(text);
        if fault.within.is_empty() {
            fault.within = format!(" of group {label}");
        }
        Self { at: 0, what: String::new(), advice: String::new(), placed: Some(Box::new(fault)) }
    }

    fn into_fault(self, text: &str) -> Fault {
        if let Some(fault) = self.placed {
            return *fault;
        }
        let column = text[..self.at].chars().count();
        let total = text.chars().count();
        let start = if total <= SHOWN { 0 } else { column.saturating_sub(SHOWN / 2) };
        let part: String = text.chars().skip(start).take(SHOWN).collect();
        let ends = (if start > 0 { "…" } else { "" }, if start + SHOWN < total { "…" } else { "" });
        let set = format!("{}{}{}", ends.0, escaped(&part, SHOWN), ends.1);
        Fault { set, column: column + 1, within: String::new(), what: self.what, advice: self.advice }
    }
}

fn trouble(at: usize, what: String, advice: impl Into<String>) -> ParseFault {
    ParseFault { at, what, advice: advice.into(), placed: None }
}

fn too_many(at: usize, many: TooMany) -> ParseFault {
    trouble(at, many.to_string(), "name fewer, or use several runs")
}

const NAME_THEN: &str = "begin with a host or a group";
const ONE_BRACKET: &str = "close the first one before, or remove one of them";

/// Limit of groups within groups.
const DEEPEST: usize = 64;

/// Limit of quoted text in an error, in characters.
const SHOWN: usize = 120;
