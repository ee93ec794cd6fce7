"""The eight prompts of the peer comparison, in SmolLM2's chat format.

usage: prompts.py > prompts.txt

The questions were written for this benchmark and come from no data set. prompts.txt
holds the prompts as text, separated by the byte 0x1e (record separator).
"""
import sys

QUESTIONS = [
    "Maya bakes 24 muffins every morning. She eats 3 for breakfast and gives 5 to her neighbour. "
    "She sells the rest at the market for 2 dollars each. "
    "How many dollars does she make every day at the market?",
    "A farmer has 48 chickens and collects eggs twice a day. Each chicken lays one egg a day, "
    "and he packs the eggs in boxes of 12. How many boxes does he fill in one week?",
    "Tom read 15 pages of his book on Monday, twice as many on Tuesday, "
    "and 10 fewer on Wednesday than on Tuesday. The book has 120 pages. "
    "How many pages are left to read?",
    "A school bus makes 3 trips each morning. It carries 32 children on the first trip, "
    "28 on the second and 19 on the third. If each child pays 2 dollars a week, "
    "how much money is collected each week?",
    "Lena saves 6 dollars a week for 14 weeks. Then she buys a jacket that costs 45 dollars "
    "and a hat that costs a third of the price of the jacket. How much money does she have left?",
    "A tank holds 500 litres of water. A pump removes 12 litres each minute for 25 minutes "
    "and then a pipe adds 8 litres each minute for 10 minutes. "
    "How many litres are in the tank at the end?",
    "Sam has 5 boxes with 18 marbles in each box. He gives a third of all his marbles to his sister "
    "and then loses 7 marbles in the garden. How many marbles does Sam have now?",
    "A baker needs 250 grams of flour for one loaf and 400 grams for one cake. "
    "He has 6 kilograms of flour and bakes 8 cakes. "
    "How many loaves can he bake with the flour that is left?",
]

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


def chat(question):
    turns = [("system", SYSTEM), ("user", question)]
    closed = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
    return closed + "<|im_start|>assistant\n"


PROMPTS = [chat(question) for question in QUESTIONS]

if __name__ == "__main__":
    sys.stdout.write("\x1e".join(PROMPTS))
