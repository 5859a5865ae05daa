//! Parser of the arguments of one setting.

use super::algorithms::KnownAlgorithms;
use super::forward::{self, Forward, ForwardKind};
use super::jump::Jump;
use super::keyword::{Keyword, Shape};
use super::{value, words};

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// One of the words of the keyword, as `ssh -G` writes it.
    Word(&'static str),
    /// Number; durations in seconds, sizes in bytes.
    Number(u64),
    Text(String),
    Words(Vec<String>),
    Jump(Jump),
    Forward(Forward),
}

/// Error about arguments, and advice.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Bad {
    pub what: String,
    pub hint: Option<String>,
}

impl Bad {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), hint: None }
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

/// Settings of a line: usually one, none for `ConnectTimeout none`, two for `RekeyLimit 1G 1h`.
pub(super) type Settings = Vec<(Keyword, Value)>;

/// Parses the arguments of a keyword: `args` are the words, `raw` is the text of the line.
pub(super) fn parse(
    keyword: Keyword,
    args: Vec<String>,
    raw: &str,
    known: &KnownAlgorithms,
) -> Result<Settings, Bad> {
    let mut args = Arguments { left: args.into_iter() };
    let settings = match keyword.shape() {
        Shape::Switch => vec![(keyword, switch(&args.one()?)?)],
        Shape::OneOf(choices) => vec![(keyword, one_of(choices, &args.one()?)?)],
        Shape::Time => time(keyword, &args.one()?)?,
        Shape::Number => vec![(keyword, Value::Number(number(&args.one()?)?.into()))],
        Shape::Text | Shape::File => vec![(keyword, Value::Text(args.one()?))],
        Shape::Command => return Ok(vec![(keyword, Value::Text(words::command(raw).to_owned()))]),
        Shape::Words => vec![(keyword, Value::Words(args.alone_if("none")?))],
        Shape::Algorithms(list) => {
            let text = args.one()?;
            if let Some(stranger) = known.stranger(list, &text) {
                let hint = match stranger {
                    "" => "a list has a name in it".to_owned(),
                    _ => format!("`ssh -Q {}` lists those that OpenSSH knows", keyword.name()),
                };
                return Err(Bad::new(format!("\"{stranger}\" is not a known algorithm")).hint(hint));
            }
            if known.assemble(list, &text).is_none() {
                return Err(Bad::new(format!("\"{text}\" leaves no algorithm")));
            }
            vec![(keyword, Value::Text(text))]
        }
        Shape::Port => {
            let text = args.one()?;
            let port = value::port(&text).filter(|port| *port > 0);
            let port = port
                .ok_or_else(|| Bad::new(format!("\"{text}\" is not a port")).hint("a port is 1 to 65535"));
            vec![(keyword, Value::Number(port?.into()))]
        }
        Shape::Rekey => rekey(&mut args)?,
        Shape::Jump => {
            let jump = Jump::parse(words::command(raw)).map_err(|part| {
                let form = "a jump host is [user@]host[:port] or ssh://[user@]host[:port], several have commas between";
                Bad::new(format!("\"{part}\" is not a valid jump host")).hint(form)
            })?;
            return Ok(vec![(keyword, Value::Jump(jump))]);
        }
        Shape::Forward(way) => vec![(keyword, Value::Forward(forwarded(way, &mut args)?))],
        Shape::SendEnv => {
            let names = args.all();
            if names.iter().any(|name| name.is_empty() || name.contains('=')) {
                return Err(Bad::new("the name of a variable is not empty and has no \"=\"")
                    .hint("SendEnv passes variables on; SetEnv sets them: SetEnv NAME=VALUE"));
            }
            vec![(keyword, Value::Words(names))]
        }
        Shape::SetEnv => {
            let pairs = args.all();
            if pairs.iter().any(|pair| !pair.contains('=')) {
                return Err(Bad::new("a variable has no value").hint("SetEnv NAME=VALUE"));
            }
            vec![(keyword, Value::Words(pairs))]
        }
        Shape::ForwardAgent => forward_agent(args.one()?)?,
        Shape::IdentityAgent => vec![(keyword, Value::Text(socket(args.one()?)?))],
        Shape::AddKeys => vec![(keyword, add_keys(&mut args)?)],
        Shape::Persist => vec![(keyword, persist(&args.one()?)?)],
        Shape::TunnelDevice => vec![(keyword, tunnel_device(&args.one()?)?)],
        Shape::Mask => vec![(keyword, mask(&args.one()?)?)],
        Shape::Escape => vec![(keyword, escape(args.one()?)?)],
        Shape::Quality => vec![(keyword, quality(&mut args)?)],
        Shape::PermitRemoteOpen => vec![(keyword, permit(&mut args)?)],
        Shape::Domains => vec![(keyword, domains(&mut args)?)],
        Shape::Cnames => vec![(keyword, cnames(&mut args)?)],
        Shape::Anything => vec![(keyword, Value::Words(args.all()))],
    };
    match args.left.next() {
        None => Ok(settings),
        Some(extra) => Err(Bad::new(format!("\"{extra}\" is one argument too many"))
            .hint("put an argument with spaces in quotes")),
    }
}

struct Arguments {
    left: std::vec::IntoIter<String>,
}

impl Arguments {
    fn one(&mut self) -> Result<String, Bad> {
        self.left.next().filter(|word| !word.is_empty()).ok_or_else(|| Bad::new("the argument is missing"))
    }

    fn all(&mut self) -> Vec<String> {
        self.left.by_ref().collect()
    }

    /// Returns all words. No word may be empty, and the word `word` must be the only one.
    fn alone_if(&mut self, word: &str) -> Result<Vec<String>, Bad> {
        let all = self.all();
        if all.iter().any(String::is_empty) {
            return Err(Bad::new("an argument is empty"));
        }
        if all.len() > 1 && all.iter().any(|one| one.eq_ignore_ascii_case(word)) {
            return Err(Bad::new(format!("\"{word}\" must be the only word")));
        }
        Ok(all)
    }
}

fn switch(text: &str) -> Result<Value, Bad> {
    one_of(&[("yes", "yes"), ("true", "yes"), ("no", "no"), ("false", "no")], text)
        .map_err(|_| Bad::new(format!("\"{text}\" is neither yes nor no")))
}

fn one_of(choices: &[(&'static str, &'static str)], text: &str) -> Result<Value, Bad> {
    let found = choices.iter().find(|(word, _)| word.eq_ignore_ascii_case(text));
    found.map(|(_, shown)| Value::Word(shown)).ok_or_else(|| {
        let words: Vec<&str> = choices.iter().map(|(word, _)| *word).collect();
        Bad::new(format!("\"{text}\" is not a choice")).hint(format!("one of {}", words.join(", ")))
    })
}

fn time(keyword: Keyword, text: &str) -> Result<Settings, Bad> {
    if text == "none" {
        return Ok(Vec::new());
    }
    Ok(vec![(keyword, Value::Number(seconds(text)?.into()))])
}

fn seconds(text: &str) -> Result<u32, Bad> {
    value::time(text).ok_or_else(|| {
        Bad::new(format!("\"{text}\" is not a time")).hint("seconds, or numbers with s, m, h, d, w: 1m30s")
    })
}

fn number(text: &str) -> Result<u32, Bad> {
    value::number(text).ok_or_else(|| Bad::new(format!("\"{text}\" is not a number from 0 to 2147483647")))
}

fn rekey(args: &mut Arguments) -> Result<Settings, Bad> {
    let text = args.one()?;
    let size = match text.as_str() {
        "default" => 0,
        text => value::size(text).ok_or_else(|| {
            Bad::new(format!("\"{text}\" is not a size")).hint("bytes, or a number with K, M, G: 1G")
        })?,
    };
    if (1..16).contains(&size) {
        return Err(Bad::new(format!("{size} bytes are too few for a rekey")));
    }
    let mut settings = vec![(Keyword::RekeyLimit, Value::Number(size))];
    if let Some(text) = args.left.next() {
        settings.extend(time(Keyword::RekeyInterval, &text)?);
    }
    Ok(settings)
}

fn forwarded(kind: ForwardKind, args: &mut Arguments) -> Result<Forward, Bad> {
    let listen = args.one()?;
    let connect = match kind {
        ForwardKind::Dynamic => None,
        ForwardKind::Local | ForwardKind::Remote => args.left.next().filter(|word| !word.is_empty()),
    };
    let (kind, text) = match connect {
        Some(connect) => (kind, format!("{listen}:{connect}")),
        // A remote forward without a target is dynamic.
        None if kind == ForwardKind::Local => return Err(Bad::new("where to connect is missing")),
        None => (ForwardKind::Dynamic, listen),
    };
    forward::parse(kind, &text).ok_or_else(|| {
        Bad::new(format!("\"{text}\" is not a forward"))
            .hint("[address:]port or a path, then host:port or a path")
    })
}

fn forward_agent(text: String) -> Result<Settings, Bad> {
    if let Ok(value) = switch(&text) {
        return Ok(vec![(Keyword::ForwardAgent, value)]);
    }
    Ok(vec![
        (Keyword::ForwardAgent, Value::Word("yes")),
        (Keyword::ForwardAgentSocket, Value::Text(socket(text)?)),
    ])
}

/// Parses a path, or `$NAME` for the variable that holds the path.
fn socket(text: String) -> Result<String, Bad> {
    if let Some(name) = text.strip_prefix('$').filter(|name| !name.starts_with('{')) {
        let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        if !is_name {
            return Err(Bad::new(format!("\"{name}\" is not a variable name")));
        }
    }
    Ok(text)
}

fn add_keys(args: &mut Arguments) -> Result<Value, Bad> {
    let text = args.one()?;
    let limit = args.left.next();
    let word = one_of(
        &[
            ("yes", "true"),
            ("true", "true"),
            ("no", "false"),
            ("false", "false"),
            ("ask", "ask"),
            ("confirm", "confirm"),
        ],
        &text,
    );
    match (word, limit) {
        (Ok(Value::Word("confirm")), Some(limit)) => match seconds(&limit)? {
            0 => Ok(Value::Word("confirm")),
            limit => Ok(Value::Text(format!("confirm {limit}"))),
        },
        (Ok(word), None) => Ok(word),
        (Err(_), None) => match seconds(&text)? {
            0 => Ok(Value::Word("true")),
            limit => Ok(Value::Text(limit.to_string())),
        },
        (_, Some(limit)) => Err(Bad::new(format!("\"{limit}\" has no meaning after \"{text}\""))),
    }
}

fn persist(text: &str) -> Result<Value, Bad> {
    Ok(match text {
        "no" | "false" => Value::Word("no"),
        "yes" | "true" => Value::Word("yes"),
        text => match seconds(text)? {
            0 => Value::Word("yes"),
            seconds => Value::Text(seconds.to_string()),
        },
    })
}

fn tunnel_device(text: &str) -> Result<Value, Bad> {
    let side = |text: &str| match text.eq_ignore_ascii_case("any") {
        true => Some("any".to_owned()),
        false => value::number(text).map(|number| number.to_string()),
    };
    let (local, remote) = text.split_once(':').unwrap_or((text, "any"));
    let (local, remote) = side(local).zip(side(remote)).ok_or_else(|| {
        Bad::new(format!("\"{text}\" is not a pair of devices")).hint("a number or any, as in 0:any")
    })?;
    Ok(Value::Text(format!("{local}:{remote}")))
}

fn mask(text: &str) -> Result<Value, Bad> {
    let mask = u32::from_str_radix(text, 8).ok().filter(|mask| *mask <= 0o777);
    let mask =
        mask.ok_or_else(|| Bad::new(format!("\"{text}\" is not a mask")).hint("octal digits, such as 0177"))?;
    Ok(Value::Text(format!("0{mask:o}")))
}

fn escape(text: String) -> Result<Value, Bad> {
    let control = text.strip_prefix('^').is_some_and(|rest| matches!(rest.as_bytes(), [64..=127]));
    match text == "none" || text.len() == 1 || control {
        true => Ok(Value::Text(text)),
        false => Err(Bad::new(format!("\"{text}\" is not an escape character"))
            .hint("one character, ^A to ^_, or none")),
    }
}

fn quality(args: &mut Arguments) -> Result<Value, Bad> {
    let given = args.one()?;
    let all: Vec<String> = std::iter::once(given).chain(args.left.next()).collect();
    let names = "none af11 af12 af13 af21 af22 af23 af31 af32 af33 af41 af42 af43 cs0 cs1 cs2 cs3 cs4 cs5 cs6 cs7 ef \
        le lowdelay throughput reliability va";
    for text in &all {
        let number = match text.strip_prefix("0x") {
            Some(digits) => u8::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        };
        let named = names.split_whitespace().any(|name| name.eq_ignore_ascii_case(text));
        if !named && number.is_none() {
            return Err(Bad::new(format!("\"{text}\" is not a quality of service"))
                .hint("such as af21, cs1, ef, none"));
        }
    }
    Ok(Value::Words(all))
}

fn permit(args: &mut Arguments) -> Result<Value, Bad> {
    let all = args.all();
    let alone = |text: &str| text.eq_ignore_ascii_case("none") || text.eq_ignore_ascii_case("any");
    for text in &all {
        let good = match alone(text) {
            true => all.len() == 1,
            false => text.rsplit_once(':').is_some_and(|(host, port)| {
                !host.is_empty() && (port == "*" || value::port(port).is_some_and(|port| port > 0))
            }),
        };
        if !good {
            return Err(
                Bad::new(format!("\"{text}\" is not a host:port")).hint("any and none are used alone")
            );
        }
    }
    match all.is_empty() {
        true => Err(Bad::new("the argument is missing")),
        false => Ok(Value::Words(all)),
    }
}

fn domains(args: &mut Arguments) -> Result<Value, Bad> {
    let mut all = args.alone_if("none")?;
    for domain in &mut all {
        let good = domain.starts_with(|c: char| c.is_ascii_alphanumeric())
            && domain.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
            && !domain.contains("..");
        if !good {
            return Err(Bad::new(format!("\"{domain}\" is not a domain")));
        }
        let lower = domain.to_ascii_lowercase();
        *domain = lower.strip_suffix('.').unwrap_or(&lower).to_owned();
    }
    Ok(Value::Words(all))
}

fn cnames(args: &mut Arguments) -> Result<Value, Bad> {
    let all = args.alone_if("none")?;
    let rule = |text: &String| match text.as_str() {
        "*" => Ok("*:*".to_owned()),
        text if text.eq_ignore_ascii_case("none") => Ok("none".to_owned()),
        text => match text.split_once(':') {
            Some((_, to)) if !to.is_empty() => Ok(text.to_ascii_lowercase()),
            _ => Err(Bad::new(format!("\"{text}\" is not a rule")).hint("from-domains:to-domains")),
        },
    };
    all.iter().map(rule).collect::<Result<_, _>>().map(Value::Words)
}
