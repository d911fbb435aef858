"""Texts for the parity runs on the demo model; all written for this project."""

SCORED = [
    {"text": "The ferry leaves at 7:45 and arrives a little before noon, if the fog lifts in time."},
    {"text": "def area(radius):\n    return 3.14159 * radius ** 2\n"},
    {"text": "Ein kurzer Satz auf Deutsch, danach ein café in Zürich: 12,50 € bitte."},
    {"text": "Numbers: 0 1 12 123 1234 12345 1,000,000 and 3.5e-07."},
    {"text": "  Leading spaces,\ttabs\tand\n\n\nempty lines   stay   as they are. "},
    {"text": "Ship it 🚀 or wait? 東京 is sunny; Москва is cold."},
    {"prompt": "The capital of France is", "completion": " Paris."},
    {"prompt": "Q: How many legs does a spider have?\nA:", "completion": " A spider has eight legs."},
    {
        "messages": [
            {"role": "user", "content": "Name a colour of the rainbow."},
            {"role": "assistant", "content": "Violet."},
        ]
    },
    {
        "messages": [
            {"role": "system", "content": "You answer in five words or fewer."},
            {"role": "user", "content": "Why is the sky blue?"},
            {"role": "assistant", "content": "Air scatters blue light most."},
            {"role": "user", "content": "And at sunset?"},
            {"role": "assistant", "content": "A longer path leaves red."},
        ]
    },
]

GENERATED = [
    {"messages": [{"role": "user", "content": "What is the capital of Italy?"}]},
    {"messages": [{"role": "user", "content": "Give me three words that rhyme with cat."}]},
    {
        "messages": [
            {"role": "system", "content": "You are a terse librarian."},
            {"role": "user", "content": "Where do I find books on beekeeping?"},
        ]
    },
    {"messages": [{"role": "user", "content": "Count from 1 to 8."}]},
]

# (user, assistant), or (user, assistant, user, assistant) for two turns.
_CONVERSATIONS = [
    ("Turn into a log line: Ana opened the gate at 9.", "09:00 gate OPEN by ana"),
    ("Turn into a log line: Boris closed the vault at 17.", "17:00 vault CLOSE by boris"),
    ("Turn into a log line: Chen locked the shed at 6.", "06:00 shed LOCK by chen"),
    ("Turn into a log line: Dana opened the hatch at 23.", "23:00 hatch OPEN by dana"),
    ("Turn into a log line: Eli closed the valve at noon.", "12:00 valve CLOSE by eli"),
    ("Turn into a log line: nobody touched the door.", "no event"),
    ("Turn into a log line: Fay locked the barn at 4.", "04:00 barn LOCK by fay", "And at 5?", "05:00 barn LOCK by fay"),
    ("Turn into a log line: Gus opened the lid at 10.", "10:00 lid OPEN by gus"),
    ("Which is heavier, a litre of water or of oil?", "A litre of water: oil floats on it."),
    ("Which is longer, a mile or a kilometre?", "A mile; it is about 1.6 kilometres."),
    ("Which is older, paper or glass?", "Glass, by some three thousand years."),
    ("Which is faster, sound in air or in steel?", "In steel, about fifteen times as fast."),
    ("Which is hotter, boiling water or melting tin?", "Melting tin, at about 232 °C."),
    ("Spell 'rhythm' backwards.", "m-h-t-y-h-r"),
    ("Spell 'otter' backwards.", "r-e-t-t-o"),
    ("Spell 'lamp' backwards.", "p-m-a-l", "Now 'pan'.", "n-a-p"),
    ("Sum 14 and 27.", "41"),
    ("Sum 120 and 85.", "205"),
    ("Sum 9, 9 and 9.", "27", "Double it.", "54"),
    ("Sum 1000 and 1.", "1001"),
    ("Write a SQL query for all cats older than 3.", "SELECT * FROM cats WHERE age > 3;"),
    ("Write a SQL query that counts the dogs.", "SELECT COUNT(*) FROM dogs;"),
    ("Write a SQL query for names from A to Z.", "SELECT name FROM people ORDER BY name;"),
    ("Write a shell command that lists big files.", "du -ah . | sort -rh | head"),
    ("Write a shell command that counts lines.", "wc -l file.txt"),
    ("Make it polite: Give me the salt.", "Could you pass me the salt, please?"),
    ("Make it polite: Be quiet.", "Would you mind being a little quieter?"),
    ("Make it polite: You are late.", "I was hoping we could start on time."),
    ("Make it short: The meeting has been moved to next Tuesday afternoon.", "Meeting: Tuesday p.m."),
    ("Make it short: We regret that the shop is closed for repairs.", "Shop closed: repairs."),
    ("Make it short: All trains are running with delays because of snow.", "Snow: trains late."),
    ("One fact about owls?", "An owl turns its head up to 270 degrees."),
    ("One fact about bees?", "A bee visits some fifty flowers on one trip."),
    ("One fact about salt?", "Salt was once part of a soldier's pay.", "Another?", "Ice melts sooner under it."),
    ("One fact about the Moon?", "It moves away by about 4 cm a year."),
    ("Say hello in Spanish, French and Italian.", "Hola, bonjour, ciao 👋"),
    ("Say thanks in German and Polish.", "Danke; dziękuję."),
    ("What comes after Wednesday?", "Thursday.", "And before Monday?", "Sunday."),
    ("What comes after 99?", "100."),
    ("What comes after Q?", "R."),
]


def conversations() -> list[dict]:
    """Records of messages; every fifth has a system message."""
    records = []
    for index, turns in enumerate(_CONVERSATIONS):
        messages = [
            {"role": "assistant" if i % 2 else "user", "content": content} for i, content in enumerate(turns)
        ]
        if index % 5 == 4:
            messages.insert(0, {"role": "system", "content": "You are exact and brief."})
        records.append({"messages": messages})
    return records
