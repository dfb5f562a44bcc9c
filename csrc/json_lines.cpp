// Reads JSON lines that all have the keys and kinds of values of one known line into columns, and stops before the
// first that differs: Python's own reader takes that one, and finds the words for what is wrong with it.
#include <nanobind/nanobind.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace nb = nanobind;

namespace roundoff {

#ifdef __cpp_lib_to_chars  // exact conversion of decimals; without it there is no such loop

namespace {

enum Kind : int64_t { kInteger, kNumber, kBoolean, kText, kSkipped };

constexpr int kMaxDepth = 4, kMaxNesting = 64, kMaxDigits = 18;
constexpr int64_t kAnySize = -1;

// As kernels/json_lines.py fills it, in words of 64 bits. Texts write the number of a text for each line to `values`,
// and where each that differs from the one before begins and ends to `texts`.
struct Field {
  const char* key;  // between its quotes
  int64_t key_size, kind, depth;
  int64_t sizes[kMaxDepth];  // of the lists; kAnySize is the same for all fields of a line
  int64_t* values;           // doubles for kNumber
  int64_t* texts;
  uint8_t* nulls;  // one for each value; none if a null is not known here
  int64_t capacity;
  int64_t num_values, num_texts;  // of the lines that were read
  int64_t next_value, next_text;  // with what was read of a line that is not finished
};

constexpr double kPowers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                              1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};

inline bool is_digit(char c) { return static_cast<unsigned char>(c - '0') < 10; }

// Nothing that it accepts is a newline or 0, one of which follows the last line: it cannot read further.
struct Line {
  const char* at;
  const char* begin;
  int64_t size = kAnySize;

  void space() {
    while (*at == ' ' || *at == '\t' || *at == '\r') ++at;
  }

  bool take(char c) {
    space();
    if (*at != c) return false;
    ++at;
    return true;
  }

  bool take(const char* word) {
    const size_t length = std::strlen(word);
    if (std::strncmp(at, word, length) != 0) return false;
    at += length;
    return true;
  }

  // Reads a number as JSON and Python write it; whole ones of up to 18 digits are exact in `whole`.
  bool number(int64_t& whole, double& real, bool& is_whole) {
    const char* const first = at;
    const bool is_negative = *at == '-';
    at += is_negative;
    is_whole = false;
    if (*at == 'N') return real = std::numeric_limits<double>::quiet_NaN(), !is_negative && take("NaN");
    if (*at == 'I') return real = is_negative ? -HUGE_VAL : HUGE_VAL, take("Infinity");
    uint64_t digits = 0;
    const char* const from = at;
    if (!is_digit(*at)) return false;
    while (is_digit(*at)) digits = 10 * digits + static_cast<uint64_t>(*at++ - '0');
    int64_t num_digits = at - from, exponent = 0;
    if (*from == '0' && num_digits > 1) return false;
    is_whole = *at != '.' && *at != 'e' && *at != 'E';
    if (is_whole) {
      if (num_digits > kMaxDigits) return false;
      whole = is_negative ? -static_cast<int64_t>(digits) : static_cast<int64_t>(digits);
      real = static_cast<double>(whole);
      return true;
    }
    if (*at == '.') {
      const char* const fraction = ++at;
      while (is_digit(*at)) digits = 10 * digits + static_cast<uint64_t>(*at++ - '0');
      exponent = fraction - at;
      if (exponent == 0) return false;
      num_digits -= exponent;
    }
    if (*at == 'e' || *at == 'E') {
      ++at;
      if (*at == '+' || *at == '-') ++at;
      if (!is_digit(*at)) return false;
      while (is_digit(*at)) ++at;
      exponent = -100;
    }
    if (num_digits <= kMaxDigits && digits < (1ull << 53) && exponent >= -22) {
      real = static_cast<double>(digits) / kPowers[-exponent];
      if (is_negative) real = -real;
      return true;
    }
    const auto found = std::from_chars(first, at, real);
    return found.ec == std::errc() && found.ptr == at;
  }

  bool text(const char*& from, const char*& to) {
    if (!take('"')) return false;
    for (from = at; *at != '"'; ++at) {
      if (static_cast<unsigned char>(*at) < 0x20) return false;
      if (*at != '\\') continue;
      ++at;
      if (*at == 0 || std::strchr("\"\\/bfnrtu", *at) == nullptr) return false;
      if (*at != 'u') continue;
      for (int i = 0; i < 4; ++i) {
        ++at;
        if (!is_digit(*at) && !((*at | 32) >= 'a' && (*at | 32) <= 'f')) return false;
      }
    }
    to = at++;
    return true;
  }

  bool skip(int nesting) {
    const char *from, *to;
    int64_t whole;
    double real;
    bool is_whole;
    space();
    switch (*at) {
      case '"': return text(from, to);
      case 't': return take("true");
      case 'f': return take("false");
      case 'n': return take("null");
      case '[':
      case '{': break;
      default: return number(whole, real, is_whole);
    }
    if (nesting == kMaxNesting) return false;
    const bool is_object = *at++ == '{';
    const char close = is_object ? '}' : ']';
    if (take(close)) return true;
    do {
      if (is_object && !(space(), text(from, to) && take(':'))) return false;
      if (!skip(nesting + 1)) return false;
    } while (take(','));
    return take(close);
  }

  bool one_text(Field& field) {
    const char *from, *to;
    if (field.next_value == field.capacity || !text(from, to)) return false;
    int64_t* const next = field.texts + 2 * field.next_text;
    const bool is_same = field.next_text > 0 && next[-1] - next[-2] == to - from &&
                         std::memcmp(begin + next[-2], from, to - from) == 0;
    if (!is_same) {
      next[0] = from - begin;
      next[1] = to - begin;
      ++field.next_text;
    }
    field.values[field.next_value++] = field.next_text - 1;
    return true;
  }

  bool one_value(Field& field) {
    space();
    if (field.next_value == field.capacity) return false;
    int64_t whole = 0;
    double real = 0;
    bool is_whole = true;
    const bool is_null = *at == 'n';
    if (is_null) {
      if (field.nulls == nullptr || !take("null")) return false;
    } else if (field.kind == kBoolean) {
      whole = *at == 't';
      if (!take(whole ? "true" : "false")) return false;
    } else if (!number(whole, real, is_whole) || (field.kind == kInteger && !is_whole)) {
      return false;
    }
    if (field.nulls != nullptr) field.nulls[field.next_value] = is_null;
    if (field.kind == kNumber) {
      std::memcpy(field.values + field.next_value, &real, sizeof real);
    } else {
      field.values[field.next_value] = whole;
    }
    ++field.next_value;
    return true;
  }

  bool values(Field& field, int64_t level) {
    if (level == field.depth) return one_value(field);
    if (!take('[')) return false;
    int64_t count = 0;
    if (!take(']')) {
      do {
        if (!values(field, level + 1)) return false;
        ++count;
      } while (take(','));
      if (!take(']')) return false;
    }
    if (field.sizes[level] != kAnySize) return count == field.sizes[level];
    if (size == kAnySize) size = count;
    return count == size;
  }

  bool object(Field* fields, int64_t num_fields) {
    if (*at != '{') return false;
    ++at;
    for (int64_t i = 0; i < num_fields; ++i) {
      Field& field = fields[i];
      if (i > 0 && !take(',')) return false;
      if (!take('"') || std::strncmp(at, field.key, field.key_size) != 0) return false;
      at += field.key_size;
      if (*at != '"') return false;
      ++at;
      if (!take(':')) return false;
      space();
      if (!(field.kind == kSkipped ? skip(0) : field.kind == kText ? one_text(field) : values(field, 0))) return false;
    }
    return take('}');
  }
};

// Returns the number of lines read, and writes how many bytes they take to `end`, and their sizes to `sizes`.
int64_t read_lines(const char* data, int64_t num_bytes, Field* fields, int64_t num_fields, int64_t* sizes,
                   int64_t max_lines, int64_t& end) {
  int64_t num_lines = 0;
  end = 0;
  for (; num_lines < max_lines && end < num_bytes; ++num_lines) {
    Line line{data + end, data};
    const bool fits = line.object(fields, num_fields);
    line.space();
    if (!fits || !(line.at == data + num_bytes || *line.at == '\n')) break;
    sizes[num_lines] = line.size;
    end = line.at - data + (line.at < data + num_bytes);
    for (int64_t i = 0; i < num_fields; ++i) {
      fields[i].num_values = fields[i].next_value;
      fields[i].num_texts = fields[i].next_text;
    }
  }
  return num_lines;
}

}  // namespace

static nb::tuple read_lines_at(uintptr_t data, int64_t num_bytes, uintptr_t fields, int64_t num_fields,
                               uintptr_t sizes, int64_t max_lines) {
  int64_t end, num_lines;
  {
    nb::gil_scoped_release released;
    num_lines = read_lines(reinterpret_cast<const char*>(data), num_bytes, reinterpret_cast<Field*>(fields),
                           num_fields, reinterpret_cast<int64_t*>(sizes), max_lines, end);
  }
  return nb::make_tuple(num_lines, end);
}

void bind_json_lines(nb::module_& m) {
  m.def("read_json_lines", &read_lines_at,
        "Read lines at an address, which end with a newline or are followed by 0, into the memory of the fields.");
}

#else

void bind_json_lines(nb::module_&) {}

#endif

}  // namespace roundoff
