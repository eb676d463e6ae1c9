//! The reader against files that Python wrote, and against files that nobody should write.

use super::*;

/// What Python writes with protocol 2, and but for the second byte with 3, for
/// `shared = ['x']; {'numbers': [0, 255, 65535, -1, 2**31, -2**40, 2**63-1], 'big': 2**64,
/// 'float': 1.5, 'flags': (True, False, None), 'text': 'né', 'one': (7,), 'two': (1, 2), 'four':
/// (1, 2, 3, 4), 'first': {'frames': shared}, 'second': {'frames': shared}, 'empty': [(), [], {}],
/// 'nothing': ''}`.
const PROTOCOL_2: &str = "\
    80027d71002858070000006e756d6265727371015d7102284b004bff4dffff4affffffff8a0500000080008a0600\
    00000000ff8a08ffffffffffffff7f65580300000062696771038a090000000000000000015805000000666c6f61\
    747104473ff80000000000005805000000666c616773710588894e87710658040000007465787471075803000000\
    6ec3a9710858030000006f6e6571094b0785710a580300000074776f710b4b014b0286710c5804000000666f7572\
    710d284b014b024b034b0474710e58050000006669727374710f7d711058060000006672616d657371115d711258\
    01000000787113617358060000007365636f6e6471147d711568116812735805000000656d70747971165d711728\
    295d71187d71196558070000006e6f7468696e67711a5800000000711b752e";

/// That dictionary in protocol 4, and but for the second byte in 5.
const PROTOCOL_4: &str = "\
    800495e5000000000000007d94288c076e756d62657273945d94284b004bff4dffff4affffffff8a050000008000\
    8a060000000000ff8a08ffffffffffffff7f658c03626967948a090000000000000000018c05666c6f617494473f\
    f80000000000008c05666c6167739488894e87948c0474657874948c036ec3a9948c036f6e65944b0785948c0374\
    776f944b014b0286948c04666f757294284b014b024b034b0474948c056669727374947d948c066672616d657394\
    5d948c01789461738c067365636f6e64947d9468116812738c05656d707479945d9428295d947d94658c076e6f74\
    68696e67948c0094752e";

fn from_hex(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn read_all(bytes: &[u8]) -> Result<Pickle<KeepAll>, PickleError> {
    read(bytes, Limits::default(), KeepAll)
}

fn complaint(bytes: &[u8]) -> String {
    match read_all(bytes) {
        Ok(pickle) => panic!("read as {:?}", pickle.root),
        Err(error) => error.to_string(),
    }
}

fn get(pickle: &Pickle<KeepAll>, dict: Value, key: &str) -> Value {
    let Value::Dict(id) = dict else { panic!("{dict:?} is not a dict") };
    let key = Value::Text(pickle.objects.text_id(key).unwrap());
    let pairs = pickle.objects.dict(id).items().unwrap();
    pairs.iter().find(|pair| pair.0 == key).unwrap().1
}

fn list(pickle: &Pickle<KeepAll>, value: Value) -> Vec<Value> {
    match value {
        Value::List(id) => pickle.objects.list(id).items().unwrap().to_vec(),
        Value::Tuple(id) => pickle.objects.tuple(id).to_vec(),
        value => panic!("{value:?} is not a list"),
    }
}

#[test]
fn every_protocol_gives_the_same_data() {
    for (hex, protocol) in [(PROTOCOL_2, 2), (PROTOCOL_2, 3), (PROTOCOL_4, 4), (PROTOCOL_4, 5)] {
        let mut bytes = from_hex(hex);
        bytes[1] = protocol;
        let pickle = read_all(&bytes).unwrap();
        let field = |key| get(&pickle, pickle.root, key);
        let numbers = [0, 255, 65535, -1, 1 << 31, -(1 << 40), i64::MAX].map(Value::Int);
        assert_eq!(list(&pickle, field("numbers")), numbers, "protocol {protocol}");
        assert_eq!(field("big"), Value::Float(18_446_744_073_709_551_616.0));
        assert_eq!(field("float"), Value::Float(1.5));
        let flags = [Value::Bool(true), Value::Bool(false), Value::None];
        assert_eq!(list(&pickle, field("flags")), flags);
        assert_eq!(field("text"), Value::Text(pickle.objects.text_id("né").unwrap()));
        assert_eq!(list(&pickle, field("one")), [Value::Int(7)]);
        assert_eq!(list(&pickle, field("two")), [1, 2].map(Value::Int));
        assert_eq!(list(&pickle, field("four")), [1, 2, 3, 4].map(Value::Int));
        assert_eq!(list(&pickle, field("empty")).len(), 3);
        assert_eq!(field("nothing"), Value::Text(pickle.objects.text_id("").unwrap()));
    }
}

#[test]
fn what_two_records_share_is_one_object() {
    let pickle = read_all(&from_hex(PROTOCOL_4)).unwrap();
    let first = get(&pickle, get(&pickle, pickle.root, "first"), "frames");
    let second = get(&pickle, get(&pickle, pickle.root, "second"), "frames");
    assert!(matches!(first, Value::List(_)));
    assert_eq!(first, second);
}

#[test]
fn a_list_may_hold_itself() {
    let pickle = read_all(b"]q\0h\0a.").unwrap();
    assert_eq!(list(&pickle, pickle.root), [pickle.root]);
}

#[test]
fn sets_bytes_and_old_opcodes_are_read() {
    // Protocol 5: ({1, 2}, frozenset({3}), b'xy', bytearray(b'z')).
    let bytes = b"\x80\x05(\x8f\x94(K\x01K\x02\x90(K\x03\x91\x94C\x02xy\x94\
                  \x96\x01\0\0\0\0\0\0\0z\x94t\x94.";
    let pickle = read_all(bytes).unwrap();
    let items = list(&pickle, pickle.root);
    let (Value::Set(set), Value::Bytes(bytes)) = (items[0], items[2]) else { panic!("{items:?}") };
    assert_eq!(pickle.objects.list(set).items(), Some([1, 2].map(Value::Int).as_slice()));
    assert_eq!(pickle.objects.bytes(bytes), b"xy");
    // Protocol 0: [1, True, 5, 2.5, 'a', 'b', {'a': 1}].
    let pickle = read_all(b"(lp0\nI1\naI01\naL5L\naF2.5\naVa\np1\naS'b'\na(dg1\nI1\nsa.").unwrap();
    let items = list(&pickle, pickle.root);
    assert_eq!(items[..4], [Value::Int(1), Value::Bool(true), Value::Int(5), Value::Float(2.5)]);
    assert_eq!(get(&pickle, items[6], "a"), Value::Int(1));
    assert!(complaint(b"V\\u00e9\n.").contains("protocol 2 or later"));
}

#[test]
fn marks_can_be_taken_back() {
    let pickle = read_all(b"K\x01(K\x02K\x03120(0\x85.").unwrap();
    assert_eq!(list(&pickle, pickle.root), [Value::Int(1)]);
}

#[test]
fn a_file_cut_short_anywhere_says_so() {
    for hex in [PROTOCOL_2, PROTOCOL_4] {
        let bytes = from_hex(hex);
        for length in 0..bytes.len() {
            let error = read_all(&bytes[..length]).err().unwrap();
            assert!(matches!(error.kind, PickleErrorKind::Truncated), "at {length}: {error}");
            assert_eq!(error.offset_bytes, length as u64);
        }
    }
}

#[test]
fn a_file_with_any_byte_changed_never_panics() {
    let bytes = from_hex(PROTOCOL_4);
    for at in 0..bytes.len() {
        for value in 0..=255 {
            let mut damaged = bytes.clone();
            damaged[at] = value;
            let _ = read_all(&damaged);
        }
    }
}

#[test]
fn code_is_refused_by_name_and_place() {
    assert_eq!(
        complaint(b"\x80\x04N0cos\nsystem\n."),
        "the file asks to run code (opcode GLOBAL at byte 4), which a memory snapshot never needs"
    );
    for (opcode, name) in [
        (b'R', "REDUCE"),
        (b'b', "BUILD"),
        (b'i', "INST"),
        (b'o', "OBJ"),
        (b'P', "PERSID"),
        (0x81, "NEWOBJ"),
        (0x93, "STACK_GLOBAL"),
    ] {
        assert!(complaint(&[opcode, b'.']).contains(name));
    }
    assert!(complaint(b"\x97.").contains("NEXT_BUFFER"));
    assert!(complaint(b"\xff").contains("0xff"));
    assert!(complaint(b"\x80\x06.").contains("protocol 6"));
}

#[test]
fn opcodes_that_do_not_fit_together_are_damage() {
    for (bytes, what) in [
        (b".".as_slice(), "stack is empty"),
        (b"(.", "stack is empty"),
        (b"0", "no mark"),
        (b"e", "no mark"),
        (b"(e", "added to nothing"),
        (b"](a", "stack is empty"),
        (b"K\x01K\x02a.", "not a list"),
        (b"](K\x01K\x02u.", "not a dict"),
        (b"}(K\x01u.", "no value"),
        (b"h\x07.", "never gave"),
        (b"N(\x94.", "stack is empty"),
        (b"K\x01(K\x02\x86.", "stack is empty"),
        (b"\x8b\xff\xff\xff\xff.", "negative length"),
        (b"Iabc\n.", "number cannot be read"),
    ] {
        let text = complaint(bytes);
        assert!(text.contains(what), "{bytes:?}: {text}");
    }
}

#[test]
fn lengths_and_numbers_in_the_file_allocate_nothing() {
    let long_text = [b"\x8d".as_slice(), &(1_u64 << 60).to_le_bytes(), b"abc"].concat();
    assert!(complaint(&long_text).contains("cut short"));
    let pickle = read_all(b"Nr\xff\xff\xff\x7fj\xff\xff\xff\x7f\x86.").unwrap();
    assert_eq!(list(&pickle, pickle.root), [Value::None, Value::None]);
    assert!(pickle.objects.memory_bytes() < 4096);
}

#[test]
fn depth_costs_no_host_stack() {
    let depth = 1_000_000;
    let bytes = [vec![b']'; depth], vec![b'a'; depth - 1], vec![b'.']].concat();
    let pickle = read_all(&bytes).unwrap();
    assert!(pickle.objects.memory_bytes() < 64 * bytes.len() as u64);
}

#[test]
fn limits_are_kept() {
    let bytes = [vec![b']'; 1_000_000], vec![b'.']].concat();
    let limits = Limits { length_bytes: u64::MAX, memory_bytes: 1 << 20 };
    let error = read(bytes.as_slice(), limits, KeepAll).err().unwrap();
    assert!(matches!(error.kind, PickleErrorKind::MemoryLimit { limit_bytes: 1_048_576 }));
    let limits = Limits { length_bytes: 500_000, memory_bytes: u64::MAX };
    let error = read(bytes.as_slice(), limits, KeepAll).err().unwrap();
    assert!(matches!(error.kind, PickleErrorKind::LengthLimit { limit_bytes: 500_000 }));
    let text = [b"\x8d".as_slice(), &(1_u64 << 20).to_le_bytes(), &vec![b'a'; 1 << 20]].concat();
    let limits = Limits { length_bytes: u64::MAX, memory_bytes: 1 << 20 };
    let error = read(text.as_slice(), limits, KeepAll).err().unwrap();
    assert!(matches!(error.kind, PickleErrorKind::MemoryLimit { .. }));
}

/// Takes over every dictionary that has a key `k`, as the number under it.
struct TakeOver;

impl Sink for TakeOver {
    fn vocabulary(&self) -> &'static [&'static str] {
        &["k"]
    }

    fn dict_filled(&mut self, _: &mut Objects, pairs: &[Value]) -> Option<u32> {
        match *pairs {
            [Value::Text(TextId(0)), Value::Int(number)] => Some(number as u32),
            _ => None,
        }
    }
}

#[test]
fn a_record_taken_over_is_still_shared_and_cannot_be_changed() {
    // d = {'k': 7}; [d, {'other': 1}, d]
    let bytes = b"\x80\x04](}\x94(\x8c\x01kK\x07u}(\x8c\x05otherK\x01uh\0e.";
    let pickle = read(bytes.as_slice(), Limits::default(), TakeOver).unwrap();
    let Value::List(id) = pickle.root else { panic!("{:?}", pickle.root) };
    let &[Value::Dict(first), Value::Dict(other), Value::Dict(last)] =
        pickle.objects.list(id).items().unwrap()
    else {
        panic!("not three dicts")
    };
    assert_eq!(first, last);
    assert_eq!(pickle.objects.dict(first), Content::Token(7));
    assert_eq!(pickle.objects.dict(other).items().map(<[_]>::len), Some(1));

    let changed = b"\x80\x04}(\x8c\x01kK\x07uK\x01K\x02s.";
    let error = read(changed.as_slice(), Limits::default(), TakeOver).err().unwrap();
    assert!(error.to_string().contains("changed after it was complete"));
}
