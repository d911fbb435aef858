#include "../../src/serve/token_places.h"

#include <gtest/gtest.h>

namespace sftrun::serve {
namespace {

using Places = std::vector<size_t>;

TEST(TokenPlaces, CountCharacters) {
  EXPECT_EQ(places_in_text({{"Wör"}, {"ter"}, {" ü"}, {"ber"}}, "Wörter über"),
            (Places{0, 3, 6, 8}));
  EXPECT_EQ(places_in_text({}, "a"), Places());
}

TEST(TokenPlaces, APartIsAtItsCharacter) {
  EXPECT_EQ(places_in_text({{"a\xE6"}, {"\x97"}, {"\xA5"}, {"b"}}, "a日b"), (Places{0, 1, 1, 2}));
  EXPECT_EQ(places_in_text({{"\xE6\x97"}, {"\xA5\xE6\x9C"}, {"\xAC!"}}, "日本!"),
            (Places{0, 0, 1}));
  const std::string lost = "\xEF\xBF\xBD";  // U+FFFD
  EXPECT_EQ(places_in_text({{"\xE6"}, {"\x97"}, {"a"}, {"\xFF"}, {"\x97"}, {"b"}},
                           lost + "a" + lost + lost + "b"),
            (Places{0, 0, 1, 2, 3, 4}))
      << "of no character";
}

TEST(TokenPlaces, TheTextMayLackTokens) {
  EXPECT_EQ(places_in_text({{"<s>", true}, {" Hello"}, {" you"}, {"</s>", true}}, "Hello you"),
            (Places{0, 0, 5, 9}))
      << "SentencePiece adds a space";
  EXPECT_EQ(places_in_text({{"<s>", true}, {"a"}}, "<s>a"), (Places{0, 3})) << "it has this one";
  EXPECT_EQ(places_in_text({{"<s>", true}, {"\xE6"}, {"\x97\xA5"}}, "日"), (Places{0, 0, 0}));
}

TEST(TokenPlaces, StayInATextThatTheTokenizerChanged) {
  EXPECT_EQ(places_in_text({{"hello"}, {" "}, {"you"}}, "HELLO you"), (Places{0, 5, 6}));
  EXPECT_EQ(places_in_text({{"abc"}, {"def"}, {"g"}}, "xy"), (Places{0, 2, 2}));
  EXPECT_EQ(places_in_text({{"\xE6"}, {"\x97\xA5"}}, ""), (Places{0, 0}));
}

}  // namespace
}  // namespace sftrun::serve
