"""Features of values without parts."""

from __future__ import annotations

from guided_case import INT, A, arrays, case, objects

SCALAR_CASES = [
    case(
        "any", objects({"a": True}), ['{"a":[{"b":null}]}', '{"a":-1.5e3}'], ['{"b":1}', '{"a":}']
    ),
    case("any", arrays(True), ['[1,"a",{},[],null]'], ["[1,]", "{}", "[tru]"]),
    case("null", {"type": "null"}, ["null"], ["0", '""', "false", "nul"]),
    case("boolean", {"type": "boolean"}, ["true", "false"], ["0", "1", "null", '"true"']),
    case("enum", {"const": "a"}, ['"a"'], ['"b"', '"aa"', '""', "1"]),
    case(
        "enum",
        {"enum": ["red", 'a"b', "ä\n", 1, -2.5, True, None]},
        ['"red"', '"a\\"b"', '"ä\\n"', "1", "-2.5", "true", "null"],
        ['"re"', '"redd"', "2", "11", "-2", "-2.55", "false", '"a"', '"1"'],
    ),
    case("enum", {"enum": [0, False]}, ["0", "false"], ["true", "1", "-1", '""']),
    case("enum", {"enum": [10, 100]}, ["10", "100"], ["1", "1000", "10.5", "010"]),
    *(
        case("enum", {"const": value}, [text], ["1", f"{text}1"])
        for value, text in ((-2, "-2"), (0, "0"), (1e-7, "0.0000001"), (10**20, "1" + "0" * 20))
    ),
    case(
        "enum:large",
        {"enum": [2**53 + 1, -(2**63) - 1, 10**23, "a"]},
        ["9007199254740993", "-9223372036854775809", "1" + "0" * 23, '"a"'],
        ["9007199254740992", "-9223372036854775808", "99999999999999991611392", "a"],
    ),
    case("controls", {"const": "a\0b"}, ['"a\\u0000b"'], ['"ab"', '"a"', '"a\\u0001b"']),
    case("controls", objects({"\x1f": INT}), ['{"\\u001f":1}'], ['{"":1}', '{"\\u001e":1}']),
    case(
        "number",
        {"type": "number"},
        ["0", "-1", "1.5", "-0.25", "1e5", "1E-7", "2.5e+3", "123456789012345678901234567890"],
        ["01", "1.", ".5", "+1", "NaN", "Infinity", '"1"', "--1", "1e", "0x10", "null"],
    ),
    case(
        "number:minimum",
        {"type": "number", "minimum": 1.5},
        ["1.5", "1.50", "2", "10", "100.25", "1.51"],
        ["1", "1.49", "0", "-2", "1.4999", "-10", "0.15"],
    ),
    case(
        "number:minimum",
        {"type": "number", "minimum": -1.5},
        ["-1.5", "-1", "0", "-0.5", "7", "-1.25"],
        ["-2", "-1.51", "-10", "-15"],
    ),
    case(
        "number:maximum",
        {"type": "number", "maximum": 0.3},
        ["0.3", "0.25", "0", "-7", "-0.5", "0.2999"],
        ["0.31", "1", "0.4", "3", "0.30001"],
    ),
    *(
        case("number:maximum", {"type": "number", **bounds}, valid, invalid)
        for bounds, valid, invalid in (
            ({"maximum": 0.95}, ["0.9", "0.95", "0.89", "0", "-3"], ["0.951", "0.96", "1", "9"]),
            ({"minimum": -1.257, "maximum": 1.25}, ["-1.25", "-1.2", "1.2"], ["-1.26", "1.3"]),
            ({"minimum": 0.2, "maximum": 0.257}, ["0.2", "0.25", "0.21"], ["0.1", "0.26", "0"]),
            ({"minimum": 1e-7, "maximum": 1e-5}, ["0.0000001", "0.000009"], ["0", "0.00001001"]),
        )
    ),
    case(
        "number:exclusiveMinimum",
        {"type": "number", "exclusiveMinimum": 0},
        ["0.1", "1", "0.001", "12.5"],
        ["0", "0.0", "-1", "-0.1", "-0"],
    ),
    case(
        "number:exclusiveMinimum",
        {"type": "number", "exclusiveMinimum": -2, "exclusiveMaximum": 2.5},
        ["-1.9", "0", "2.49", "2"],
        ["-2", "2.5", "2.50", "-2.0", "3", "-3", "2.51"],
    ),
    case(
        "number:exclusiveMaximum",
        {"type": "number", "exclusiveMaximum": 10},
        ["9.99", "9", "-10", "0"],
        ["10", "10.0", "11", "100"],
    ),
    *(
        case("number:bounds within a unit", {"type": "number", **bounds}, valid, invalid)
        for bounds, valid, invalid in (
            ({"exclusiveMinimum": 0, "maximum": 0.5}, ["0.5", "0.01"], ["0", "0.0", "-0", "0.51"]),
            ({"exclusiveMinimum": 1, "maximum": 1.5}, ["1.5", "1.01"], ["1", "1.0", "1.51", "0.5"]),
            ({"exclusiveMinimum": 10, "exclusiveMaximum": 10.5}, ["10.4"], ["10", "10.5", "11"]),
            ({"minimum": -0.5, "exclusiveMaximum": 0}, ["-0.5", "-0.1"], ["0", "-0", "-0.0", "1"]),
            ({"exclusiveMinimum": -10.5, "exclusiveMaximum": -10}, ["-10.4"], ["-10", "-10.5"]),
            ({"minimum": 0.5, "exclusiveMaximum": 1}, ["0.5", "0.99"], ["1", "1.0", "0.49", "0"]),
        )
    ),
    case(
        "number:multipleOf",
        {"type": "number", "multipleOf": 0.25},
        ["0.25", "1", "-0.5", "2.75", "0", "1.50", "1.5"],
        ["0.3", "0.2", "1.1", "-0.26", "0.255"],
    ),
    case(
        "number:multipleOf",
        {"type": "number", "multipleOf": 0.01},
        ["0.01", "1", "19.99", "-0.5"],
        ["0.001", "19.999", "-0.005"],
    ),
    case(
        "number:multipleOf+bounds",
        {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.1},
        ["0", "0.1", "0.9", "1"],
        ["1.1", "0.15", "-0.1", "2"],
    ),
    case(
        "integer",
        {"type": "integer"},
        ["0", "-1", "42", "123456789012345678901234567890"],
        ["1.5", "01", '"1"', "null", "true", "1.", "-", "1e-1"],
    ),
    case(
        "integer:minimum",
        {"type": "integer", "minimum": 17},
        ["17", "18", "20", "99", "100", "1000"],
        ["16", "9", "0", "-17", "-20", "1"],
    ),
    case("integer:minimum", {"type": "integer", "minimum": 0}, ["0", "7"], ["-1", "-10"]),
    case(
        "integer:maximum",
        {"type": "integer", "minimum": -25, "maximum": 130},
        ["-25", "-9", "0", "99", "130", "129"],
        ["-26", "131", "200", "-100", "1000"],
    ),
    case(
        "integer:maximum",
        {"type": "integer", "maximum": -5},
        ["-5", "-6", "-100"],
        ["-4", "0", "5"],
    ),
    case(
        "integer:multipleOf",
        {"type": "integer", "multipleOf": 7},
        ["0", "7", "-14", "7000"],
        ["1", "8", "-13", "77777778"],
    ),
    case(
        "integer:multipleOf+bounds",
        {"type": "integer", "minimum": 10, "maximum": 100, "multipleOf": 10},
        ["10", "50", "100"],
        ["0", "5", "15", "110", "101", "-10"],
    ),
    case(
        "integer:multipleOf+bounds",
        {"type": "integer", "minimum": 0, "multipleOf": 10},
        ["0", "10", "1000000"],
        ["1", "15", "-10", "1000001"],
    ),
    case(
        "integer:multipleOf+bounds",
        {"type": "integer", "minimum": -50000, "maximum": 50000, "multipleOf": 7},
        ["-49994", "0", "7", "49994"],
        ["1", "-8", "50001", "-50001", "50008"],
    ),
    case(
        "bounds:large",
        {"type": "integer", "minimum": 2**53 + 1, "maximum": 2**63 + 2},
        ["9007199254740993", "9223372036854775809", "9223372036854775810"],
        ["0", "9007199254740992", "9223372036854775811", "-9007199254740993"],
    ),
    case(
        "bounds:large",
        {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
        ["0", "9223372036854775807", "-9223372036854775808", "5"],
        ["9223372036854775808", "-9223372036854775809", "1" + "0" * 19],
    ),
    case(
        "bounds:large",
        {"type": "number", "minimum": -5 * 10**18, "maximum": 17 * 10**307},
        ["0", "0.5", "-5000000000000000000", "1" + "0" * 308],
        ["-5000000000000000001", "18" + "0" * 307, "1" + "0" * 309],
    ),
    case(
        "bounds:large",
        {"type": "integer", "maximum": -(10**19)},
        ["-10000000000000000000", "-99999999999999999999"],
        ["0", "-9999999999999999999", "10000000000000000000"],
    ),
    case(
        "bounds:large",
        {"type": "number", "exclusiveMaximum": 2**53 + 1},
        ["9007199254740992", "9007199254740992.5", "-1"],
        ["9007199254740993", "9007199254740994"],
    ),
    case(
        "multipleOf:large",
        {"type": "integer", "multipleOf": 12345},
        ["0", "12345", "-24690"],
        ["1", "12346", "5"],
    ),
    case(
        "string",
        {"type": "string"},
        ['""', '"a"', '"äß漢😀"', '"\\n\\t\\"\\\\"', '"a b"'],
        ['"', "a", "null", '"\n"', '"\\x"', '"a""', "1"],
    ),
    case(
        "minLength",
        {"type": "string", "minLength": 2},
        ['"ab"', '"ä漢"', '"a\\n"', '"😀😀"', '"\\"\\""'],
        ['""', '"a"', '"\\n"', '"😀"', '"漢"'],
    ),
    case(
        "maxLength",
        {"type": "string", "maxLength": 2},
        ['""', '"ab"', '"漢字"', '"\\n\\n"', '"😀😀"'],
        ['"abc"', '"a\\nb"', '"漢字漢"', '"\\n\\n\\n"'],
    ),
    case(
        "maxLength",
        {"type": "string", "minLength": 3, "maxLength": 3},
        ['"abc"', '"\\\\\\\\\\\\"'],
        ['"ab"', '"abcd"', '"\\\\\\\\"'],
    ),
    case(
        "pattern",
        {"type": "string", "pattern": "^[a-z]+[0-9]{2}$"},
        ['"a12"', '"zz99"'],
        ['"a1"', '"12"', '"a123"', '"A12"', '"a12\\n"', '" a12"'],
    ),
    case(
        "pattern",
        {"type": "string", "pattern": "foo"},
        ['"foo"', '"a foo b"', '"\\nfoo"'],
        ['"fo"', '""'],
    ),
    case(
        "pattern",
        {"type": "string", "pattern": "^(?:a|b[\\s\\S]*)$"},
        ['"a"', '"b"', '"b\\nx"', '"b\\"漢"'],
        ['"aa"', '"c"', '""'],
    ),
    *(
        case(
            "pattern:quotes",
            {"type": "string", "pattern": f"^{found}$"},
            ['"a"', '"\\t"', '"ä"'],
            ['"\\""', '"\\n"', '"\\\\\\""', '"a'],
        )
        for found in ('[^\\x0a"]', '[^\\x0a"\\\\]', '(?:\\x09|[^\\x0a"])', '[^\\x0a"]{1,2}')
    ),
    case(
        "pattern:quotes",
        {"type": "string", "pattern": '^[^"]*$', "minLength": 1, "maxLength": 3},
        ['"a"', '"\\n\\\\"', '"漢"'],
        ['"\\""', '"a\\""', '""', '"\\n\\""', '"aaaa"'],
    ),
    case(
        "pattern",
        {"type": "string", "pattern": '^[^\\x00-\\x1f"\\\\]*$'},
        ['"a"', '"ä"'],
        ['"\\""', '"\\\\"', '"\\n"'],
    ),
    case(
        "patternProperties:quotes",
        objects({}, patternProperties={'^[^"]$': INT}, rest=A),
        ['{"a":1}', '{"aa":"a"}', '{"\\"":"a"}'],
        ['{"a":"a"}', '{"aa":1}', '{"\\"":1}'],
    ),
    case("pattern", {"type": "string", "pattern": "^\\\\\\/$"}, ['"\\\\/"'], ['"/"', '"\\\\"']),
    case(
        "pattern",
        {"type": "string", "pattern": "^[ä-ü漢]$"},
        ['"ö"', '"漢"'],
        ['"o"', '"字"', '"öö"'],
    ),
    case(
        "pattern+length",
        {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 3},
        ['"ab"', '"abc"'],
        ['"a"', '"abcd"', '"AB"', '""'],
    ),
    case(
        "pattern+length",
        {"type": "string", "pattern": "x", "maxLength": 2},
        ['"x"', '"ax"', '"x\\n"'],
        ['"ab"', '"abx"', '"\\n\\nx"'],
    ),
]
