//! EBNF as llama.cpp and xgrammar write it (`root ::= ...`), translated to Lark's notation.
//!
//! Such grammars have no lexer: every character is matched by itself. A lexer that takes the longest match would read
//! some of them otherwise, so the translation makes one regular expression of a grammar that is not recursive, and of
//! any other one a grammar over single characters. Both describe exactly the texts that the original does.

use std::collections::HashMap;
use std::fmt::Write;

use crate::part::escaped;
use crate::spec::GrammarError;

/// Longest regular expression, in bytes, before the grammar is kept as rules.
const MAX_REGEX: usize = 1 << 16;
/// Deepest nesting of groups and of rules within rules.
const MAX_DEPTH: usize = 100;

/// True if the text is in this notation rather than in Lark's.
pub fn is_gbnf(text: &str) -> bool {
    text.lines().any(|line| {
        let head = line.split_once("::=").map(|(head, _)| head.trim());
        let name = |c: char| c.is_ascii_alphanumeric() || "_-".contains(c);
        head.is_some_and(|head| !head.is_empty() && head.chars().all(name))
    })
}

/// The grammar in Lark's notation, with the rule `start`.
///
/// # Errors
/// A construct that is no part of the notation, with its line and column.
pub fn to_lark(text: &str) -> Result<String, GrammarError> {
    let rules = Parser::new(text).rules()?;
    let index: HashMap<&str, usize> = rules.iter().enumerate().map(|(at, rule)| (&*rule.name, at)).collect();
    let Some(root) = index.get("root").copied() else {
        return Err(GrammarError::new("the grammar has no rule \"root\""));
    };
    for rule in &rules {
        rule.body.check_names(&index)?;
    }
    let mut regex = Regex { rules: &rules, index: &index, open: Vec::new() };
    if let Some(regex) = regex.of_rule(root).filter(|regex| regex.len() <= MAX_REGEX) {
        return Ok(format!("start: /{regex}/\n"));
    }
    let mut lark = format!("start: rule_{root}\n");
    for (at, rule) in rules.iter().enumerate() {
        let _ = writeln!(lark, "rule_{at}: {}", rule.body.to_lark(&index));
    }
    Ok(lark)
}

#[derive(Debug)]
struct Rule {
    name: String,
    body: Node,
}

#[derive(Clone, Debug)]
enum Node {
    /// A string, character by character.
    Text(String),
    /// A class of characters, as a regular expression.
    Class(String),
    /// A rule, and where it is named.
    Name(String, Place),
    All(Vec<Node>),
    Any(Vec<Node>),
    Repeat(Box<Node>, u32, Option<u32>),
}

#[derive(Clone, Copy, Debug)]
struct Place {
    line: usize,
    column: usize,
}

impl Place {
    fn error<T>(self, message: impl std::fmt::Display) -> Result<T, GrammarError> {
        Err(GrammarError(format!("at {}({}): {message}", self.line, self.column)))
    }
}

impl Node {
    fn check_names(&self, index: &HashMap<&str, usize>) -> Result<(), GrammarError> {
        match self {
            Self::Name(name, place) if !index.contains_key(&**name) => {
                place.error(format!("there is no rule {name:?}"))
            }
            Self::All(nodes) | Self::Any(nodes) => nodes.iter().try_for_each(|node| node.check_names(index)),
            Self::Repeat(node, ..) => node.check_names(index),
            _ => Ok(()),
        }
    }

    fn to_lark(&self, index: &HashMap<&str, usize>) -> String {
        let join = |nodes: &[Self], by: &str| {
            nodes.iter().map(|node| node.to_lark(index)).collect::<Vec<_>>().join(by)
        };
        match self {
            Self::Text(text) if text.is_empty() => "\"\"".to_owned(),
            Self::Text(text) => {
                let characters: Vec<String> =
                    text.chars().map(|c| format!("/{}/", escaped(c.encode_utf8(&mut [0; 4])))).collect();
                format!("({})", characters.join(" "))
            }
            Self::Class(class) => format!("/{class}/"),
            Self::Name(name, _) => format!("rule_{}", index[&**name]),
            Self::All(nodes) if nodes.is_empty() => "\"\"".to_owned(),
            Self::All(nodes) => format!("({})", join(nodes, " ")),
            Self::Any(nodes) => format!("({})", join(nodes, " | ")),
            Self::Repeat(node, min, max) => {
                let inner = node.to_lark(index);
                match (min, max) {
                    (_, Some(0)) => "\"\"".to_owned(),
                    _ => format!("({inner}){}", times(*min, *max)),
                }
            }
        }
    }
}

fn times(min: u32, max: Option<u32>) -> String {
    match (min, max) {
        (0, None) => "*".to_owned(),
        (1, None) => "+".to_owned(),
        (0, Some(1)) => "?".to_owned(),
        (min, None) => format!("{{{min},}}"),
        (min, Some(max)) => format!("{{{min},{max}}}"),
    }
}

/// Makes one regular expression of rules that do not contain themselves.
struct Regex<'a> {
    rules: &'a [Rule],
    index: &'a HashMap<&'a str, usize>,
    open: Vec<usize>,
}

impl Regex<'_> {
    fn of_rule(&mut self, rule: usize) -> Option<String> {
        if self.open.contains(&rule) || self.open.len() > MAX_DEPTH {
            return None;
        }
        self.open.push(rule);
        let regex = self.of(&self.rules[rule].body);
        self.open.pop();
        regex
    }

    fn of(&mut self, node: &Node) -> Option<String> {
        let mut regex = match node {
            Node::Text(text) => escaped(text),
            Node::Class(class) => class.clone(),
            Node::Name(name, _) => self.of_rule(self.index[&**name])?,
            Node::All(nodes) | Node::Any(nodes) => {
                let any = matches!(node, Node::Any(_));
                let mut joined = String::new();
                for (at, node) in nodes.iter().enumerate() {
                    if any && at > 0 {
                        joined.push('|');
                    }
                    joined.push_str(&self.of(node)?);
                    if joined.len() > MAX_REGEX {
                        return None;
                    }
                }
                joined
            }
            Node::Repeat(node, min, max) => format!("(?:{}){}", self.of(node)?, times(*min, *max)),
        };
        if matches!(node, Node::Any(_) | Node::Name(..)) {
            regex = format!("(?:{regex})");
        }
        (regex.len() <= MAX_REGEX).then_some(regex)
    }
}

struct Parser<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    place: Place,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Self { rest: text.chars().peekable(), place: Place { line: 1, column: 1 }, depth: 0 }
    }

    fn peek(&mut self) -> Option<char> {
        self.rest.peek().copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.place = Place { line: self.place.line + 1, column: 1 };
        } else {
            self.place.column += 1;
        }
        Some(c)
    }

    fn take(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(wanted);
        if found {
            self.next();
        }
        found
    }

    /// Skips blank space and comments; line breaks too, if they mean nothing here.
    fn skip(&mut self, lines: bool) {
        while let Some(c) = self.peek() {
            match c {
                '#' => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.next();
                    }
                }
                '\n' | '\r' if !lines => return,
                _ if c.is_whitespace() => {
                    self.next();
                }
                _ => return,
            }
        }
    }

    fn rules(mut self) -> Result<Vec<Rule>, GrammarError> {
        let mut rules: Vec<Rule> = Vec::new();
        loop {
            self.skip(true);
            if self.peek().is_none() {
                return Ok(rules);
            }
            let place = self.place;
            let name = self.name();
            if name.is_empty() {
                return place.error("a rule must begin with its name");
            }
            self.skip(true);
            for wanted in "::=".chars() {
                if !self.take(wanted) {
                    return self.place.error(format!("\"::=\" must follow the name {name:?}"));
                }
            }
            if rules.iter().any(|rule| rule.name == name) {
                return place.error(format!("the rule {name:?} is there twice"));
            }
            let body = self.alternatives()?;
            rules.push(Rule { name, body });
        }
    }

    fn name(&mut self) -> String {
        let mut name = String::new();
        while let Some(c) = self.peek().filter(|c| c.is_ascii_alphanumeric() || "_-".contains(*c)) {
            name.push(c);
            self.next();
        }
        name
    }

    /// True if what follows is the head of the next rule.
    fn at_rule(&self) -> bool {
        let mut ahead = self.rest.clone().skip_while(|c| c.is_ascii_alphanumeric() || "_-".contains(*c));
        let next = ahead.find(|c| !c.is_whitespace());
        next == Some(':') && ahead.next() == Some(':')
    }

    fn alternatives(&mut self) -> Result<Node, GrammarError> {
        let mut ways = Vec::new();
        loop {
            ways.push(self.sequence()?);
            // An alternative may begin on the next line.
            if !self.take('|') {
                break;
            }
        }
        Ok(if ways.len() == 1 { ways.remove(0) } else { Node::Any(ways) })
    }

    fn sequence(&mut self) -> Result<Node, GrammarError> {
        let mut parts = Vec::new();
        loop {
            self.skip(true);
            let place = self.place;
            let part = match self.peek() {
                None | Some('|' | ')') => break,
                Some('"') => self.string()?,
                Some('[') => self.class()?,
                Some('.') => {
                    self.next();
                    Node::Class("(?s:.)".to_owned())
                }
                Some('(') => self.group(place)?,
                Some(c) if c.is_ascii_alphanumeric() || c == '_' => {
                    if self.at_rule() {
                        break;
                    }
                    Node::Name(self.name(), place)
                }
                Some(c @ ('&' | '!' | '~' | '@' | '<' | '%' | '$')) => {
                    return place.error(format!("the construct {c:?} is not supported"));
                }
                Some(c) => return place.error(format!("{c:?} does not belong here")),
            };
            parts.push(self.repeated(part)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::All(parts) })
    }

    fn group(&mut self, place: Place) -> Result<Node, GrammarError> {
        self.next();
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return place.error(format!("groups are more than {MAX_DEPTH} deep"));
        }
        let inner = self.alternatives()?;
        self.depth -= 1;
        if self.take(')') { Ok(inner) } else { place.error("the group is not closed") }
    }

    fn repeated(&mut self, mut part: Node) -> Result<Node, GrammarError> {
        loop {
            self.skip(false);
            let (min, max) = match self.peek() {
                Some('*') => (0, None),
                Some('+') => (1, None),
                Some('?') => (0, Some(1)),
                Some('{') => {
                    let (min, max) = self.counts()?;
                    part = Node::Repeat(Box::new(part), min, max);
                    continue;
                }
                _ => return Ok(part),
            };
            self.next();
            part = Node::Repeat(Box::new(part), min, max);
        }
    }

    /// `{m}`, `{m,}` or `{m,n}`.
    fn counts(&mut self) -> Result<(u32, Option<u32>), GrammarError> {
        let place = self.place;
        self.next();
        let mut text = String::new();
        while let Some(c) = self.next() {
            if c == '}' {
                let (least, most) = text.split_once(',').map_or((&*text, None), |(a, b)| (a, Some(b.trim())));
                let min: Option<u32> = least.trim().parse().ok();
                let max = match most {
                    None => min.map(Some),
                    Some("") => Some(None),
                    Some(most) => most.parse().ok().map(Some),
                };
                return match (min, max) {
                    (Some(min), Some(max)) if max.is_none_or(|max| max >= min) => Ok((min, max)),
                    _ => place.error(format!("{{{text}}} is no number of repetitions")),
                };
            }
            text.push(c);
        }
        place.error("the number of repetitions is not closed")
    }

    fn string(&mut self) -> Result<Node, GrammarError> {
        let place = self.place;
        self.next();
        let mut text = String::new();
        loop {
            match self.next() {
                None | Some('\n') => return place.error("the string is not closed"),
                Some('"') => return Ok(Node::Text(text)),
                Some('\\') => text.push(self.escape()?),
                Some(c) => text.push(c),
            }
        }
    }

    fn escape(&mut self) -> Result<char, GrammarError> {
        let place = self.place;
        let digits = match self.next() {
            Some('n') => return Ok('\n'),
            Some('r') => return Ok('\r'),
            Some('t') => return Ok('\t'),
            Some(c @ ('\\' | '"' | '[' | ']' | '-' | '^' | '/' | '\'')) => return Ok(c),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) => return place.error(format!("\\{c} is no escape")),
            None => return place.error("an escape is not complete"),
        };
        let hex: String = (0..digits).map_while(|_| self.next()).collect();
        match u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32).filter(|_| hex.len() == digits) {
            Some(c) => Ok(c),
            None => place.error(format!("{hex:?} is no character in hexadecimal")),
        }
    }

    /// A class of characters: `[a-z]`, `[^"\\]`.
    fn class(&mut self) -> Result<Node, GrammarError> {
        let place = self.place;
        self.next();
        let mut regex = String::from("[");
        if self.take('^') {
            regex.push('^');
        }
        let start = regex.len();
        loop {
            let first = match self.next() {
                None | Some('\n') => return place.error("the class of characters is not closed"),
                Some(']') if regex.len() > start => {
                    regex.push(']');
                    return Ok(Node::Class(regex));
                }
                Some(']') => return place.error("the class of characters is empty"),
                Some('\\') => self.escape()?,
                Some(c) => c,
            };
            let _ = write!(regex, "\\u{{{:x}}}", u32::from(first));
            let mut ahead = self.rest.clone();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']') {
                self.next();
                let last = match self.next() {
                    Some('\\') => self.escape()?,
                    Some(c) => c,
                    None => return place.error("the class of characters is not closed"),
                };
                if last < first {
                    return place.error(format!("the range {first:?} to {last:?} is empty"));
                }
                let _ = write!(regex, "-\\u{{{:x}}}", u32::from(last));
            }
        }
    }
}
