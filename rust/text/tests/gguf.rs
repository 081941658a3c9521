//! The GGUF reader on sound, truncated and hostile files.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use common::{GgufBuilder, scratch};
use frizzen_text::LoadError;
use frizzen_text::gguf::{Array, Gguf, TensorInfo, Value};
use proptest::prelude::*;

fn open(bytes: &[u8]) -> Result<Gguf, LoadError> {
    let path = scratch("x.gguf");
    std::fs::write(&path, bytes).unwrap();
    let opened = Gguf::open(&path);
    std::fs::remove_file(path).unwrap();
    opened
}

fn refusal(bytes: &[u8]) -> String {
    open(bytes).expect_err("the file is not sound").to_string()
}

fn sample() -> GgufBuilder {
    GgufBuilder::new()
        .raw("u8", 0, &[200])
        .raw("i8", 1, &[0xFF])
        .raw("u16", 2, &60_000u16.to_le_bytes())
        .raw("i16", 3, &(-2i16).to_le_bytes())
        .uint("u32", 4_000_000_000)
        .raw("i32", 5, &(-3i32).to_le_bytes())
        .raw("f32", 6, &0.5f32.to_le_bytes())
        .bool("bool", true)
        .string("string", "schön")
        .raw("u64", 10, &u64::MAX.to_le_bytes())
        .raw("i64", 11, &i64::MIN.to_le_bytes())
        .raw("f64", 12, &0.25f64.to_le_bytes())
        .strings("strings", &["a", "", "ß"])
        .ints("ints", &[-1, 7])
        .floats("floats", &[0.5, -1.0])
        .array("bools", 7, &[vec![1], vec![0]])
        .array("nested", 9, &[[&4u32.to_le_bytes()[..], &1u64.to_le_bytes(), &9u32.to_le_bytes()].concat()])
        .tensor("w", &[64, 3], 3, 0)
        .tensor("b", &[5], 0, 128)
        .data(160)
}

#[test]
fn every_value_type_is_read() {
    for version in [2, 3] {
        let gguf = open(&sample().version(version).build()).unwrap();
        assert_eq!(gguf.version, version);
        let expected = [
            ("u8", Value::Uint(200)),
            ("i8", Value::Int(-1)),
            ("u16", Value::Uint(60_000)),
            ("i16", Value::Int(-2)),
            ("u32", Value::Uint(4_000_000_000)),
            ("i32", Value::Int(-3)),
            ("f32", Value::Float(0.5)),
            ("bool", Value::Bool(true)),
            ("string", Value::String("schön".to_owned())),
            ("u64", Value::Uint(u64::MAX)),
            ("i64", Value::Int(i64::MIN)),
            ("f64", Value::Float(0.25)),
            ("strings", Value::Array(Array::Strings(["a", "", "ß"].map(str::to_owned).to_vec()))),
            ("ints", Value::Array(Array::Ints(vec![-1, 7]))),
            ("floats", Value::Array(Array::Floats(vec![0.5, -1.0]))),
            ("bools", Value::Array(Array::Bools(vec![true, false]))),
            ("nested", Value::Array(Array::Arrays(vec![Array::Ints(vec![9])]))),
        ];
        assert_eq!(gguf.metadata.len(), expected.len());
        for (key, value) in expected {
            assert_eq!(gguf.metadata[key], value, "{key}");
        }
    }
}

#[test]
fn tensors_have_absolute_positions_and_sizes() {
    let bytes = sample().build();
    let start = bytes.len() as u64 - 160;
    let expected = [
        TensorInfo { name: "w".into(), shape: vec![64, 3], ggml_type: 3, offset: start, bytes: Some(6 * 20) },
        TensorInfo { name: "b".into(), shape: vec![5], ggml_type: 0, offset: start + 128, bytes: Some(20) },
    ];
    assert_eq!(open(&bytes).unwrap().tensors, expected);
}

/// A download that stopped early is found when the header is read, wherever it stopped.
#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = sample().build();
    // The last 12 bytes are padding behind the last tensor.
    for len in 0..bytes.len() - 12 {
        let message = refusal(&bytes[..len]);
        assert!(message.contains("truncated") || message.contains("GGUF"), "cut at {len}: {message}");
    }
    assert!(open(&bytes[..bytes.len() - 12]).is_ok());
}

/// Lengths, counts and shapes from the file are compared with the file before memory is reserved for them.
#[test]
fn model_file_headers_are_not_trusted_fastllm_712() {
    let huge = |n: u64| n.to_le_bytes();
    let claims = [
        ("a string", sample().raw("k", 8, &huge(u64::MAX)).build()),
        ("a string under the limit", sample().raw("k", 8, &huge(1 << 20)).build()),
        ("an array", sample().raw("k", 9, &[&8u32.to_le_bytes()[..], &huge(1 << 62)].concat()).build()),
        ("a byte array", sample().raw("k", 9, &[&0u32.to_le_bytes()[..], &huge(1 << 23)].concat()).build()),
        (
            "an array of arrays",
            sample().raw("k", 9, &[&9u32.to_le_bytes()[..], &huge(1 << 40)].concat()).build(),
        ),
    ];
    for (what, bytes) in claims {
        let message = refusal(&bytes);
        assert!(message.contains("claims"), "{what}: {message}");
    }
    let mut counts = sample().build();
    counts[8..16].copy_from_slice(&huge(u64::MAX / 2));
    assert!(refusal(&counts).contains("the tensor list claims"));
    counts[16..24].copy_from_slice(&huge(u64::MAX));
    assert!(refusal(&counts).contains("metadata claims"));

    let tensor = |shape: &[u64], ggml_type, offset| {
        GgufBuilder::new().tensor("t", shape, ggml_type, offset).data(64).build()
    };
    assert!(refusal(&tensor(&[1 << 32, 1 << 32], 0, 0)).contains("more than 2^64 elements"));
    assert!(refusal(&tensor(&[1 << 63], 0, 0)).contains("truncated"));
    assert!(refusal(&tensor(&[1; 9], 0, 0)).contains("9 dimensions, over the limit of 8"));
    assert!(refusal(&tensor(&[33], 3, 0)).contains("rows of 33 elements, not a multiple of 32"));
    assert!(refusal(&tensor(&[1], 0, u64::MAX - 31)).contains("truncated"));
    assert!(refusal(&tensor(&[1], 0, 3)).contains("offset 3, which is not a multiple of 32"));
    // The size of an unknown type is unknown, not zero and not an error.
    assert_eq!(open(&tensor(&[7], 1000, 0)).unwrap().tensors[0].bytes, None);
}

#[test]
fn what_is_not_a_little_endian_gguf_2_or_3_is_named() {
    assert!(refusal(b"PK\x03\x04 and so on, a zip file").contains("does not start with \"GGUF\""));
    assert!(refusal(&sample().version(1).build()).contains("version 1 is not supported"));
    assert!(refusal(&sample().version(4).build()).contains("version 4 is not supported"));
    assert!(refusal(&sample().version(3u32.swap_bytes()).build()).contains("big-endian"));
    assert!(refusal(&sample().raw("k", 13, &[]).build()).contains("unknown value type 13"));
    assert!(
        refusal(&sample().raw("k", 8, &[&1u64.to_le_bytes()[..], &[0xFF]].concat()).build())
            .contains("not UTF-8")
    );
    assert!(refusal(&sample().uint("u32", 1).build()).contains("u32 occurs twice"));
    assert!(refusal(&sample().tensor("w", &[1], 0, 0).build()).contains("tensor w occurs twice"));
    assert!(refusal(&sample().uint("general.alignment", 24).build()).contains("power of two"));
    let deep =
        (0..6).fold(vec![], |inner, _| [&9u32.to_le_bytes()[..], &1u64.to_le_bytes(), &inner].concat());
    assert!(refusal(&sample().raw("k", 9, &deep).build()).contains("nests arrays deeper than 4"));
    let missing = Gguf::open(&scratch("missing.gguf")).unwrap_err();
    assert!(matches!(missing, LoadError::Io { .. }), "{missing}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Whatever bytes are changed, the answer is a header or an error.
    #[test]
    fn corrupt_files_never_panic(changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6)) {
        let mut bytes = sample().string("tail", &"x".repeat(50)).build();
        for (index, byte) in &changes {
            let at = index.index(bytes.len());
            bytes[at] = *byte;
        }
        if let Ok(gguf) = open(&bytes) {
            for tensor in &gguf.tensors {
                prop_assert!(tensor.offset + tensor.bytes.unwrap_or(0) <= bytes.len() as u64);
            }
        }
    }
}
