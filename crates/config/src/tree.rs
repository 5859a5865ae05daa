//! The values of a configuration before they mean anything, each with where it came from.

use std::collections::HashSet;
use std::fmt::Write;
use std::ops::Range;

use crate::error::quote;

/// Names one value in [`Nodes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NodeId(pub(crate) u32);

/// A value and its name in [`Nodes`].
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) id: NodeId,
    pub(crate) value: Value,
}

/// What TOML can hold.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    Text(String),
    Integer(i64),
    Float(f64),
    Switch(bool),
    /// A date or time: no key takes one.
    Time(String),
    List(Vec<Node>),
    Table(Table),
}

impl Value {
    /// What it is called in the schema.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "string",
            Value::Integer(_) => "integer",
            Value::Float(_) => "number",
            Value::Switch(_) => "boolean",
            Value::Time(_) => "date",
            Value::List(_) => "array",
            Value::Table(_) => "object",
        }
    }
}

/// Keys and values in the order of the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Table {
    pub(crate) entries: Vec<(String, Node)>,
}

impl Table {
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.entries.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.entries.iter_mut().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    pub(crate) fn push(&mut self, key: impl Into<String>, node: Node) {
        self.entries.push((key.into(), node));
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody gave it.
    Default,
    /// The file.
    File,
    /// The file names variables: the text as the file has it, such as `${HOST}:80`.
    Substituted(String),
    /// A variable of the environment lies over the file.
    Environment(String),
    /// A flag of the command line.
    Flag(&'static str),
}

impl Origin {
    /// How faults name a value that no line of the file holds.
    pub(crate) fn outside(&self) -> Option<String> {
        match self {
            Origin::Default | Origin::File | Origin::Substituted(_) => None,
            Origin::Environment(name) => Some(format!("environment {name}")),
            Origin::Flag(flag) => Some((*flag).to_owned()),
        }
    }
}

/// Everything that is known of values besides themselves.
#[derive(Clone, Debug, Default)]
pub(crate) struct Nodes {
    infos: Vec<Info>,
    /// Keys whose value was refused: what depends on them is not worth a further fault.
    broken: HashSet<(NodeId, String)>,
    /// Lists of which an entry was refused.
    incomplete: HashSet<NodeId>,
}

#[derive(Clone, Debug)]
struct Info {
    parent: Option<NodeId>,
    step: Step,
    key: Option<Range<usize>>,
    value: Option<Range<usize>>,
    origin: Origin,
}

/// From a value to one inside it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Root,
    Key(String),
    /// From 0.
    Entry(usize),
}

/// The stretches of the text that hold a key and its value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spans {
    pub(crate) key: Option<Range<usize>>,
    pub(crate) value: Option<Range<usize>>,
}

impl Nodes {
    pub(crate) fn add(&mut self, parent: Option<NodeId>, step: Step, spans: Spans, origin: Origin) -> NodeId {
        let id = NodeId(u32::try_from(self.infos.len()).unwrap_or(u32::MAX));
        self.infos.push(Info { parent, step, key: spans.key, value: spans.value, origin });
        id
    }

    /// The root table, added first.
    pub(crate) const ROOT: NodeId = NodeId(0);

    pub(crate) fn origin(&self, id: NodeId) -> &Origin {
        &self.infos[id.0 as usize].origin
    }

    pub(crate) fn set_origin(&mut self, id: NodeId, origin: Origin) {
        self.infos[id.0 as usize].origin = origin;
    }

    /// The value in the text, or what stands for it.
    pub(crate) fn value_span(&self, id: NodeId) -> Option<Range<usize>> {
        let info = &self.infos[id.0 as usize];
        info.value.clone().or_else(|| self.key_span(id))
    }

    /// The key in the text; that of the list for an entry of a list of tables.
    pub(crate) fn key_span(&self, id: NodeId) -> Option<Range<usize>> {
        let info = &self.infos[id.0 as usize];
        info.key.clone().or_else(|| info.value.clone())
    }

    pub(crate) fn step(&self, id: NodeId) -> &Step {
        &self.infos[id.0 as usize].step
    }

    pub(crate) fn parent(&self, id: NodeId) -> Option<NodeId> {
        self.infos[id.0 as usize].parent
    }

    /// `listener.web.bind[2]`: entries of lists are counted from 1.
    pub(crate) fn path(&self, id: NodeId) -> String {
        let mut steps = Vec::new();
        let mut next = Some(id);
        while let Some(info) = next.map(|id| &self.infos[id.0 as usize]) {
            steps.push(&info.step);
            next = info.parent;
        }
        let mut path = String::new();
        for step in steps.into_iter().rev() {
            match step {
                Step::Root => {}
                Step::Key(key) => {
                    if !path.is_empty() {
                        path.push('.');
                    }
                    if is_bare(key) {
                        path.push_str(key);
                    } else {
                        path.push_str(&quote(key));
                    }
                }
                Step::Entry(at) => {
                    let _ = write!(path, "[{}]", at + 1);
                }
            }
        }
        path
    }

    pub(crate) fn mark_broken(&mut self, table: NodeId, key: &str) {
        self.broken.insert((table, key.to_owned()));
    }

    pub(crate) fn is_broken(&self, table: NodeId, key: &str) -> bool {
        self.broken.contains(&(table, key.to_owned()))
    }

    pub(crate) fn mark_incomplete(&mut self, list: NodeId) {
        self.incomplete.insert(list);
    }

    /// Whether entries of the list were refused, so that nothing can be said of it as a whole.
    pub(crate) fn is_incomplete(&self, list: NodeId) -> bool {
        self.incomplete.contains(&list)
    }

    /// A text value as faults show it: in quotes, and never one that came from the environment.
    pub(crate) fn show(&self, id: NodeId, text: &str) -> String {
        match self.origin(id) {
            Origin::Default | Origin::File | Origin::Flag(_) => quote(text),
            Origin::Substituted(written) => quote(written),
            Origin::Environment(name) => format!("the value of {name}"),
        }
    }

    /// Whether the value may be repeated in a fault.
    pub(crate) fn may_be_shown(&self, id: NodeId) -> bool {
        !matches!(self.origin(id), Origin::Substituted(_) | Origin::Environment(_))
    }
}

/// Whether a key needs no quotes in TOML, and is short enough to read.
pub(crate) fn is_bare(key: &str) -> bool {
    !key.is_empty()
        && key.len() <= 80
        && key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}
